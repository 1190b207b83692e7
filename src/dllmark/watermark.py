"""Lean towards green pairs while text is generated, in whatever order the tokens appear.

A diffusion model may choose a token before its neighbours exist. A `Strategy` says which of the two
neighbours count and what stands in for one that is not revealed yet; `Watermark.bias` adds the
strategy's bias to the logits of the positions about to be filled. It keeps nothing between steps:
whatever a sampler revealed, edited or masked again, the bias follows from the tokens as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dllmark.errors import DllmarkError, MismatchError
from dllmark.greenlist import GreenList, HashedGreenList
from dllmark.key import Identity, WatermarkKey
from dllmark.text import Tokenizer, load_tokenizer

HASHED_AT_ONCE = 1 << 22
"""Pairs coloured at a time, which bounds the memory a step needs beside its logits."""


@dataclass(frozen=True)
class Strategy:
    """Which neighbours of a position bias its token, and what stands in for an unrevealed one."""

    name: str
    backward: bool
    stand_in: Literal["nothing", "argmax", "expectation"]


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("kgw", backward=False, stand_in="nothing"),
        Strategy("predictive", backward=False, stand_in="argmax"),
        Strategy("bidirectional", backward=True, stand_in="nothing"),
        Strategy("predictive-bidirectional", backward=True, stand_in="argmax"),
        Strategy("expected-bidirectional", backward=True, stand_in="expectation"),
    )
}


class Watermark:
    """One key's watermark at one strength.

    `delta` is added to a token's logit for each side on which it makes a green pair. Special tokens
    (mask, end of text, padding, ids without a token) are never green or red: they get the mean
    bias, so that the key does not change how long texts are.

    >>> watermark = Watermark(key, "predictive-bidirectional", delta=2.0)
    """

    def __init__(
        self,
        source: WatermarkKey | GreenList,
        strategy: str = "predictive-bidirectional",
        delta: float = 2.0,
        *,
        candidates: int = 8,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if strategy not in STRATEGIES:
            raise DllmarkError(f"no strategy {strategy!r}: choose one of {', '.join(STRATEGIES)}")
        if not 0 <= delta < float("inf"):
            raise DllmarkError(f"delta is added to green tokens and is at least 0; got {delta}")
        if candidates < 1:
            raise DllmarkError(f"an expectation needs at least 1 candidate; got {candidates}")
        if isinstance(source, WatermarkKey):
            tokenizer = tokenizer or load_tokenizer(source.tokenizer.name)
        if tokenizer is None:
            raise DllmarkError("a green list has no tokenizer of its own: pass the model's")
        source.identity.check_tokenizer(tokenizer.fingerprint, tokenizer.name)
        self.identity: Identity = source.identity
        self.strategy = STRATEGIES[strategy]
        self.delta = delta
        self.candidates = candidates
        self.tokenizer = tokenizer
        self._source = source

    def bias(
        self,
        tokens: Tensor,
        revealed: Tensor,
        logits: Tensor,
        positions: Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the biased logits [B, K, V] of the positions to fill.

        tokens     [B, L]    the sequence as it is: prompt, text so far, masks, padding
        revealed   [B, L]    False only where the model has yet to write
        logits     [B, R, V] of the sequence, or of those of its positions named by `rows`
        positions  [B, K]    the positions to fill; -1 where a sequence fills fewer than others
        rows       [B, R]    the positions that `logits` covers, if not all of them in order

        Positions filled in one step see each other as unrevealed. A neighbour outside the
        sequence, a special token, or an unrevealed one without logits gives no term.

        >>> import torch
        >>> tokens = torch.tensor([[7, 2, 9]])
        >>> revealed = torch.tensor([[True, False, True]])
        >>> logits = torch.zeros(1, 3, 16_384)
        >>> watermark.bias(tokens, revealed, logits, torch.tensor([[1]])).shape
        torch.Size([1, 1, 16384])
        """
        batch, length = tokens.shape
        row_of = _row_of_position(rows, batch, length, logits)
        green = self._green_list(logits.shape[-1])
        scored = self._scored(logits)
        which = torch.arange(batch, device=logits.device)[:, None]
        row = row_of.gather(1, positions.clamp(min=0))
        if rows is not None and bool(((row < 0) & (positions >= 0)).any()):
            raise DllmarkError("a position to fill is not among the rows that the logits cover")
        chosen = logits[which, row]

        bias = torch.zeros(chosen.shape, dtype=torch.float32, device=logits.device).flatten(0, 1)
        sides: list[tuple[int, Callable[[Any], Any]]] = [(-1, green.rows)]
        if self.strategy.backward:
            sides.append((+1, green.columns))
        for step, ask in sides:
            where = torch.where(positions >= 0, positions + step, -1)
            ids, weights = self._neighbours(tokens, revealed, logits, row_of, where)
            weights = torch.where(scored[ids], weights, 0.0)
            self._add(bias, ask, scored, ids.flatten(0, 1), weights.flatten(0, 1))
        exact = torch.promote_types(logits.dtype, torch.float32)
        biased = chosen.to(exact) + self.delta * bias.view(chosen.shape)
        return biased.to(logits.dtype)

    def _neighbours(
        self, tokens: Tensor, revealed: Tensor, logits: Tensor, row_of: Tensor, where: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens that stand at the given positions, [B, K, C], and their weights."""
        inside = (where >= 0) & (where < tokens.shape[1])
        where = where.clamp(0, tokens.shape[1] - 1)
        ids = tokens.gather(1, where)[..., None]
        known = (revealed.gather(1, where) & inside)[..., None]
        if self.strategy.stand_in == "nothing":
            return ids, known.float()
        row = row_of.gather(1, where)
        which = torch.arange(len(tokens), device=tokens.device)[:, None]
        beside = logits[which, row.clamp(min=0)].float()
        if self.strategy.stand_in == "argmax":
            likely = beside.argmax(-1, keepdim=True)
            weights = torch.ones_like(likely, dtype=torch.float32)
        else:
            count = min(self.candidates, beside.shape[-1])
            weights, likely = beside.softmax(-1).topk(count, dim=-1)
        certain = torch.zeros_like(weights)
        certain[..., 0] = 1
        guessed = weights * (inside & (row >= 0))[..., None]
        return torch.where(known, ids, likely), torch.where(known, certain, guessed)

    def _add(
        self,
        bias: Tensor,
        ask: Callable[[Any], Any],
        scored: Tensor,
        ids: Tensor,
        weights: Tensor,
    ) -> None:
        """Add each row's weighted green lists to its bias, candidate by candidate."""
        at_once = max(1, HASHED_AT_ONCE // bias.shape[1])
        mean = torch.tensor(self.identity.gamma, device=bias.device)
        for candidate in range(ids.shape[1]):
            active = weights[:, candidate].nonzero()[:, 0]
            for part in torch.split(active, at_once):
                green = _ask(ask, ids[part, candidate]).float()
                term = torch.where(scored, green, mean)
                bias[part] += weights[part, candidate, None] * term

    def _green_list(self, vocab_size: int) -> GreenList:
        """Return the green list over the model's vocabulary."""
        if isinstance(self._source, WatermarkKey):
            source: GreenList = HashedGreenList(self._source, vocab_size)
        else:
            source = self._source
        if self.tokenizer.vocab_size > vocab_size or source.vocab_size != vocab_size:
            raise MismatchError(
                f"the model has logits for {vocab_size} tokens, the tokenizer "
                f"{self.tokenizer.name} has {self.tokenizer.vocab_size} and the green list covers "
                f"{source.vocab_size}: they belong to different models"
            )
        return source

    def _scored(self, logits: Tensor) -> Tensor:
        """Return [V]: the tokens that are green or red; ids past the tokenizer's are neither."""
        scored = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        scored[: self.tokenizer.vocab_size] = torch.from_numpy(self.tokenizer.scored)
        return scored


def _row_of_position(rows: Tensor | None, batch: int, length: int, logits: Tensor) -> Tensor:
    """Return [B, L]: which row of the logits belongs to each position, -1 where none does."""
    count = logits.shape[1]
    order = torch.arange(count, device=logits.device).expand(batch, count)
    if rows is None:
        if count != length:
            raise DllmarkError(
                f"logits of {count} positions for a sequence of {length}: say with `rows` which"
            )
        return order
    return torch.full((batch, length), -1, device=logits.device).scatter(1, rows, order)


def _ask(ask: Callable[[Any], Any], ids: Tensor) -> Tensor:
    """Ask a green list about a tensor of tokens, on its own device where the list can."""
    if ids.device.type == "cpu" or not isinstance(getattr(ask, "__self__", None), HashedGreenList):
        return torch.from_numpy(ask(ids.cpu().numpy())).to(ids.device)
    green: Tensor = ask(ids)
    return green
