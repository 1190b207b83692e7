"""Lean towards green pairs while text is generated, in whatever order the tokens appear.

A diffusion model may choose a token before its neighbours exist. A `Strategy` says which of the two
neighbours count and what stands in for one that is not revealed yet; `Watermark.bias` adds the
strategy's bias to the logits of the positions about to be filled. It keeps nothing between steps:
whatever a sampler revealed, edited or masked again, the bias follows from the tokens as they are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllmark.errors import DllmarkError, MismatchError
from dllmark.gpu import has_triton
from dllmark.marking.bias import Contenders, add, add_some, rows_at_once
from dllmark.marking.prediction import comparable, likeliest, probabilities
from dllmark.marking.strategies import DEFAULT, check_delta, find_strategy
from dllmark.relation.greenlist import GreenList, HashedGreenList
from dllmark.relation.key import Identity, WatermarkKey
from dllmark.relation.source import Source, resolve
from dllmark.relation.tokenizer import AnyTokenizer

if TYPE_CHECKING:
    from dllmark.marking.kernel_hash import DeviceKey


class Watermark:
    """One key's watermark at one strength.

    `delta`, by default the strategy's own, is added to a token's logit for each side on which it
    makes a green pair. Special tokens (mask, end of text, padding, ids without a token) are never
    green or red: they get the mean bias, so that the key does not change how long texts are.

    >>> watermark = Watermark(key, "guided-bidirectional", delta=3.0)
    """

    def __init__(
        self,
        source: Source,
        strategy: str = DEFAULT.name,
        delta: float | None = None,
        *,
        candidates: int = 8,
        tokenizer: AnyTokenizer | None = None,
    ) -> None:
        self.strategy = find_strategy(strategy)
        delta = self.strategy.default_delta if delta is None else delta
        check_delta(delta)
        if candidates < 1:
            raise DllmarkError(f"an expectation needs at least 1 candidate; got {candidates}")
        self._source, self.tokenizer = resolve(source, tokenizer)
        self.identity: Identity = self._source.identity
        self.delta = delta
        self.candidates = candidates
        self._marked: dict[tuple[torch.device, int], Tensor] = {}
        self._keys: dict[torch.device, DeviceKey] = {}

    @property
    def on_device(self) -> bool:
        """Whether `bias` works where the logits are and waits for nothing after its first call.

        A CUDA graph can then hold it. A bit matrix lies in the host's memory.
        """
        return isinstance(self._source, WatermarkKey | HashedGreenList)

    def passes(self, positions: Tensor) -> list[Tensor]:
        """Return the positions [B, K] of one step as they are to be decided, one set at a time.

        Tokens chosen at once cannot see each other. Where the strategy asks for it, even positions
        come first and odd ones after them: only neighbours matter to each other. What is not in its
        turn is -1.

        >>> import torch
        >>> step = torch.tensor([[4, 7, 5]])
        >>> [one.tolist() for one in Watermark(key, "expected-bidirectional").passes(step)]
        [[[4, -1, -1]], [[-1, 7, 5]]]
        """
        if not self.strategy.even_odd_passes or positions.shape[1] < 2:
            return [positions]
        even = positions % 2 == 0
        return [torch.where(chosen, positions, -1) for chosen in (even, ~even)]

    def bias(
        self,
        tokens: Tensor,
        revealed: Tensor,
        logits: Tensor,
        positions: Tensor,
        rows: Tensor | None = None,
        contenders: Contenders | None = None,
    ) -> Tensor:
        """Return the biased logits [B, K, V] of the positions to fill.

        tokens     [B, L]     the sequence as it is: prompt, text so far, masks, padding
        revealed   [B, L]     False only where the model has yet to write
        logits     [B, R, V]  of the sequence, or of those of its positions named by `rows`
        positions  [B, K]     the positions to fill; -1 where a sequence fills fewer than others
        rows       [B, R]     the positions that `logits` covers, if not all of them in order
        contenders            says which tokens' bias matters: others may be left without

        Positions of one call see each other as unrevealed (`passes` parts them). A neighbour
        outside the sequence, a special token, or an unrevealed one without logits gives no term.

        >>> import torch
        >>> tokens = torch.tensor([[7, 2, 9]])
        >>> revealed = torch.tensor([[True, False, True]])
        >>> logits = torch.zeros(1, 3, 16_384)
        >>> watermark.bias(tokens, revealed, logits, torch.tensor([[1]])).shape
        torch.Size([1, 1, 16384])
        """
        size = logits.shape[-1]
        green = self._green_list(size)
        if rows is None and logits.shape[1] != tokens.shape[1]:
            raise DllmarkError(
                f"logits of {logits.shape[1]} positions for a sequence of {tokens.shape[1]}: "
                "say with `rows` which"
            )
        if isinstance(self._source, WatermarkKey) and _takes(logits, self._stand_ins(size)):
            return self._fused(tokens, revealed, logits, positions, rows, contenders)
        return self._plain(tokens, revealed, logits, positions, rows, green, contenders)

    def _fused(
        self,
        tokens: Tensor,
        revealed: Tensor,
        logits: Tensor,
        positions: Tensor,
        rows: Tensor | None,
        contenders: Contenders | None,
    ) -> Tensor:
        """Return the biased logits by the kernels, which check on the GPU what they are given."""
        from dllmark.marking import kernels
        from dllmark.marking.kernel_hash import DeviceKey

        if logits.device.type == "cpu":
            _check_covered(_row_of(rows, positions, logits.shape[1]), positions)
        if logits.device not in self._keys:
            assert isinstance(self._source, WatermarkKey)
            self._keys[logits.device] = DeviceKey(self._source, logits.device)
        return kernels.bias(
            tokens,
            revealed,
            logits,
            positions,
            rows,
            contenders,
            key=self._keys[logits.device],
            scored=self._scored(logits),
            delta=self.delta,
            gamma=self.identity.gamma,
            sides=2 if self.strategy.backward else 1,
            candidates=self._stand_ins(logits.shape[-1]),
            weighted=self.strategy.prediction == "expectation",
        )

    def _plain(
        self,
        tokens: Tensor,
        revealed: Tensor,
        logits: Tensor,
        positions: Tensor,
        rows: Tensor | None,
        green: GreenList,
        contenders: Contenders | None,
    ) -> Tensor:
        """Return the biased logits by torch alone, term by term in the order of the kernels.

        Contenders count on a CPU alone: to find them on a GPU would mean to wait for it.
        """
        row = _row_of(rows, positions, logits.shape[1])
        _check_covered(row, positions)
        scored = self._scored(logits)
        chosen = logits[_texts(row), row.clamp(min=0)]
        bias = torch.zeros(chosen.shape, dtype=torch.float32, device=logits.device).flatten(0, 1)
        steps = (-1, +1) if self.strategy.backward else (-1,)
        beside = [torch.where(positions >= 0, positions + step, -1) for step in steps]
        found, pull = self._neighbours(tokens, revealed, logits, rows, torch.cat(beside, 1))
        pull = self.delta * torch.where(scored[found], pull, 0.0)
        strengths = pull.chunk(len(steps), 1)
        total = torch.zeros(positions.shape, dtype=torch.float32, device=logits.device)
        for weight in (weight for strength in strengths for weight in strength.unbind(-1)):
            total += weight
        some = None
        if contenders is not None and logits.device.type == "cpu":
            some = contenders(total)
        for step, side, strength in zip(steps, found.chunk(len(steps), 1), strengths, strict=True):
            ids, weights = side.flatten(0, 1), strength.flatten(0, 1)
            if some is None:
                add(bias, green.rows if step < 0 else green.columns, ids, weights)
            else:
                add_some(bias, green, step, ids, weights, some.flatten(0, 1))
        bias = torch.where(scored, bias, (self.identity.gamma * total).view(-1, 1))
        exact = torch.promote_types(logits.dtype, torch.float32)
        return (chosen.to(exact) + bias.view(chosen.shape)).to(logits.dtype)

    def _neighbours(
        self, tokens: Tensor, revealed: Tensor, logits: Tensor, rows: Tensor | None, where: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens that stand at the given positions, [B, K, C], and their weights."""
        inside = (where >= 0) & (where < tokens.shape[1])
        at = where.clamp(0, tokens.shape[1] - 1).long()
        ids = tokens.gather(1, at)[..., None].long()
        known = (revealed.gather(1, at) & inside)[..., None]
        if self.strategy.prediction == "none":
            return ids, known.float()
        missing = inside & ~known[..., 0]
        row = torch.where(missing, _row_of(rows, where, logits.shape[1]), -1)
        likely, weights = self._predict(logits, row)
        certain = torch.zeros_like(weights)
        certain[..., 0] = 1
        guessed = torch.where((row >= 0)[..., None], weights, 0.0)
        return torch.where(known, ids, likely), torch.where(known, certain, guessed)

    def _predict(self, logits: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens that stand in at some rows of the logits, [B, K, C], and weights.

        For a row of -1 they are any. A row asked for twice is computed once on the CPU alone: to
        find it on a GPU would mean to wait for it.
        """
        count = self._stand_ins(logits.shape[-1])
        places = torch.where(row >= 0, _texts(row) * logits.shape[1] + row, 0).flatten()
        back = None
        if logits.device.type == "cpu":
            places, back = torch.unique(places, return_inverse=True)
        ids, weights = [], []
        for part in torch.split(places, rows_at_once(logits)):
            beside = comparable(logits.flatten(0, 1)[part])
            if self.strategy.prediction == "argmax":
                ids.append(beside.argmax(-1, keepdim=True))  # the first among equals
                weights.append(torch.ones_like(ids[-1], dtype=torch.float32))
            else:
                likely, values = likeliest(beside, count)
                ids.append(likely)
                weights.append(probabilities(beside, values).nan_to_num(0.0))
        shape = (*row.shape, count)
        found = [torch.cat(ids), torch.cat(weights)]
        likely, weight = found if back is None else [one[back] for one in found]
        return likely.view(shape), weight.view(shape)

    def _stand_ins(self, vocab_size: int) -> int:
        """Return how many tokens stand in for an unrevealed neighbour."""
        most = {"none": 0, "argmax": 1, "expectation": self.candidates}
        return min(most[self.strategy.prediction], vocab_size)

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
        """Return [V]: the tokens that are green or red; ids past the tokenizer's are neither.

        It is kept on the device: copying it there in each step would wait for the GPU.
        """
        place = (logits.device, logits.shape[-1])
        if place not in self._marked:
            with torch.inference_mode(False):
                scored = torch.zeros(place[1], dtype=torch.bool)
                scored[: self.tokenizer.vocab_size] = torch.from_numpy(self.tokenizer.scored)
                self._marked[place] = scored.to(place[0])
        return self._marked[place]


def _takes(logits: Tensor, candidates: int) -> bool:
    """Return whether the kernels run on these logits: on a GPU, and in Triton's interpreter."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not (logits.is_cuda or interpreted) or not has_triton():
        return False
    if logits.requires_grad and torch.is_grad_enabled():
        return False  # the kernels compute no gradient
    from dllmark.marking import kernels

    return logits.dtype in kernels.DTYPES and candidates <= kernels.MOST_CANDIDATES


def _row_of(rows: Tensor | None, positions: Tensor, count: int) -> Tensor:
    """Return [B, K]: which row of the logits belongs to each position, -1 where none does."""
    if rows is None:
        return torch.where((positions >= 0) & (positions < count), positions, -1).long()
    number = torch.arange(count, device=rows.device)
    found = torch.where(rows[:, None, :] == positions[..., None], number, -1).amax(-1)
    return torch.where(positions >= 0, found, -1)


def _check_covered(row: Tensor, positions: Tensor) -> None:
    """Raise if a position to fill has no logits; on a GPU this fails without waiting for it."""
    covered = ((row >= 0) | (positions < 0)).all()
    message = "a position to fill is not among the rows that the logits cover"
    if covered.is_cuda:
        torch._assert_async(covered, message)
    elif not covered:
        raise DllmarkError(message)


def _texts(row: Tensor) -> Tensor:
    """Return [B, K]: the text that each element belongs to."""
    return torch.arange(len(row), device=row.device)[:, None].expand_as(row)
