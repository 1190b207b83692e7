"""How each of the other schemes marks a step of a sampler.

A step has three places where a watermark can act: the noise tokens are drawn with, the order in
which positions are written, and the logits of the positions about to be written. A `Mark` changes
one of them and leaves the others as they are. Special tokens get the mean bias in every scheme, as
in ours, so that no key decides how long texts are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dllmark.experiments.rivals.coins import position_noise, side_lists, token_coins
from dllmark.marking.bias import biased_logits
from dllmark.marking.state import BiasSettings, State
from dllmark.marking.strategies import Strategy
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer
from dllmark.sampling.canvas import Canvas
from dllmark.sampling.confidence import draw, warp_logits
from dllmark.sampling.denoiser import Denoiser, StepShape

if TYPE_CHECKING:
    from dllmark.models.loading import Model
    from dllmark.sampling.settings import Sampler

GLOAGUEN_TOP_K = 50
"""Tokens an expectation is over in the code released with arXiv 2509.24368."""

CANDIDATES = 3
"""Positions that dgMARK's look-ahead tries in each step."""


@dataclass(frozen=True)
class Choice:
    """What a step knows when it chooses the positions to write, all of one block.

    score       [B, W]  the sampler's own order: the highest comes first
    candidates  [B, W]  the token it would write at each place
    masked      [B, W]  where it may write
    positions   [W]     the places, counted from the text's first token
    look                from a place and a token for each text, [B] each, to the candidates after
                        they were written
    """

    score: Tensor
    candidates: Tensor
    masked: Tensor
    positions: Tensor
    look: Callable[[Tensor, Tensor], Tensor]


class Mark:
    """A watermark under one key; as it is, it changes nothing."""

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer, delta: float = 0.0) -> None:
        self.key, self.tokenizer, self.delta = key, tokenizer, delta
        self.identity = key.identity
        self._kept: dict[tuple[str, int, torch.device], Tensor] = {}

    def denoiser(
        self, model: Model, canvas: Canvas, sampler: Sampler, generator: torch.Generator
    ) -> Denoiser:
        """Return what reveals the tokens of a canvas under this mark."""
        return MarkingDenoiser(self, model, canvas, sampler, generator)

    def noise(self, positions: Tensor, vocab_size: int) -> Tensor | None:
        """Return log(-log u) [W, V] for tokens at positions of a text; None for the sampler's."""
        return None

    def prefer(self, choice: Choice) -> Tensor:
        """Return the order [B, W] in which places are written: the highest comes first."""
        return choice.score

    def bias(self, state: State) -> Tensor | None:
        """Return the biased logits [B, K, V] of positions to fill; None for those of the model."""
        return None

    def scored(self, state: State) -> Tensor:
        """Return [V]: the tokens that are green or red, kept where they are used."""
        place = ("scored", state.vocab_size, state.logits.device)
        if place not in self._kept:
            scored = torch.zeros(state.vocab_size, dtype=torch.bool)
            scored[: self.tokenizer.vocab_size] = torch.from_numpy(self.tokenizer.scored)
            self._kept[place] = scored.to(state.logits.device)
        return self._kept[place]

    def coins(self, label: str, vocab_size: int, device: torch.device) -> Tensor:
        """Return [V]: the keyed coins of all tokens, kept where they are used."""
        place = (label, vocab_size, device)
        if place not in self._kept:
            coins = torch.from_numpy(token_coins(self.key, label, vocab_size))
            self._kept[place] = coins.to(device)
        return self._kept[place]


class MarkingDenoiser(Denoiser):
    """Reveals tokens as every sampler does, with a mark's say in the three places it can act."""

    def __init__(
        self,
        mark: Mark,
        model: Model,
        canvas: Canvas,
        sampler: Sampler,
        generator: torch.Generator,
    ) -> None:
        super().__init__(model, canvas, sampler, None, generator)
        self.mark = mark

    def draw_noise(self, inside: Tensor, block: Tensor) -> Tensor | None:
        """Return the mark's noise, or the sampler's."""
        noise = self.mark.noise(block - self.canvas.start, inside.shape[-1])
        return super().draw_noise(inside, block) if noise is None else noise.expand(inside.shape)

    def choose(
        self,
        score: Tensor,
        masked: Tensor,
        inside: Tensor,
        noise: Tensor | None,
        shape: StepShape,
    ) -> Tensor:
        """Return the places to reveal in the order that the mark prefers."""
        place = torch.arange(shape.width, device=score.device)
        covered = (self.first + place).repeat(len(score), 1)
        if self.cache is not None:  # what is tried stays out of it: a block is always computed anew
            past = 0 if self.model.config.shifted else shape.beyond
            shape = replace(shape, computed=shape.width + past)

        def look(at: Tensor, tokens: Tensor) -> Tensor:
            before = self.canvas.tokens
            self.canvas.tokens = before.scatter(1, (self.first + at)[:, None], tokens[:, None])
            logits = self._predict(covered, shape)
            self.canvas.tokens = before
            return draw(warp_logits(self.sampler, logits), noise)

        candidates = draw(warp_logits(self.sampler, inside), noise)
        positions = self.first - self.canvas.start + place
        preferred = self.mark.prefer(Choice(score, candidates, masked, positions, look))
        return super().choose(preferred, masked, inside, noise, shape)

    def apply_bias(
        self, positions: Tensor, logits: Tensor, noise: Tensor | None, covered: Tensor
    ) -> Tensor:
        """Return the logits of the positions with the mark's bias."""
        state = State(self.canvas.tokens, self.canvas.revealed, logits, positions, covered)
        biased = self.mark.bias(state)
        return self._at(positions, logits) if biased is None else biased


class Unigram(Mark):
    """δ for every token of one keyed list (Zhao et al., arXiv 2306.17439)."""

    def bias(self, state: State) -> Tensor:
        """Add δ to green tokens, whatever stands beside them."""
        green = self.coins("unigram", state.vocab_size, state.logits.device)
        bias = torch.where(self.scored(state), green.float(), self.key.gamma)
        return state.logits[rows_of(state)] + self.delta * bias


class LeftRight(Mark):
    """δ for the list of each revealed neighbour, under a key for each side (LR-DWM).

    arXiv 2601.12376 was read in part: its keys, that an unrevealed neighbour gives no term, and the
    score are the paper's; one δ for both sides is our reading.
    """

    def bias(self, state: State) -> Tensor:
        """Add δ for each side on which a token is on the revealed neighbour's list."""
        lists = TwoSides(*side_lists(self.key, state.vocab_size))
        settings = BiasSettings(LEFT_RIGHT, self.delta, self.key.gamma, top_k=0)
        return biased_logits(state, settings, self.scored(state), lists)


LEFT_RIGHT = Strategy("lr-dwm", 2.0, backward=True, prediction="none")


class TwoSides(HashedGreenList):
    """Green lists of which the forward one has another key than the backward one."""

    def __init__(self, left: HashedGreenList, right: HashedGreenList) -> None:
        super().__init__(left._key, left.vocab_size)
        self._right = right

    def columns(self, right: Any) -> Any:
        """Return [N, V]: which tokens are green before each right token."""
        return self._right.columns(right)


class DgMark(Mark):
    """Writes first what has the parity of its position (dgMARK, Hong and No, arXiv 2601.22985).

    The keyed coin of a token must be its position's parity. Among the positions where the token to
    write matches, the sampler's best comes first; the others follow when none is left. With
    `candidates` above 1, the best of them are tried: the one after which most candidates match wins
    (look-ahead). A step that writes several tokens takes the first by look-ahead and the others by
    the sampler's order: the paper writes one token a step.
    """

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer, candidates: int = 1) -> None:
        super().__init__(key, tokenizer)
        self.candidates = candidates

    def prefer(self, choice: Choice) -> Tensor:
        """Rank places that match before all others, and the best of the look-ahead first."""
        width = choice.score.shape[1]
        order = choice.score.argsort(dim=1, descending=True, stable=True)
        place = torch.arange(width, device=order.device).expand(order.shape)
        rank = torch.zeros_like(order).scatter(1, order, width - place)
        matched = self._matches(choice.candidates, choice) & choice.masked
        rank = rank + width * matched
        if self.candidates > 1:
            best, found = self._look_ahead(choice, rank, matched)
            rank = rank.scatter_add(1, best[:, None], (2 * width * found)[:, None])
        return rank.float()

    def _look_ahead(self, choice: Choice, rank: Tensor, matched: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B] the place to write first, and whether there is one that matches."""
        some = min(self.candidates, rank.shape[1])
        places = rank.topk(some, dim=1).indices
        scores = []
        for at in places.unbind(1):
            tokens = choice.candidates.gather(1, at[:, None])[:, 0]
            left = choice.masked.scatter(1, at[:, None], False)
            after = self._matches(choice.look(at, tokens), choice) & left
            scores.append(torch.where(matched.gather(1, at[:, None])[:, 0], after.sum(1), -1))
        score, which = torch.stack(scores, 1).max(1)  # the sampler's best among equals: the first
        return places.gather(1, which[:, None])[:, 0], score >= 0

    def _matches(self, tokens: Tensor, choice: Choice) -> Tensor:
        """Return [B, W]: where a token's coin is the parity of its position."""
        coins = self.coins("dgmark", self.tokenizer.vocab_size, tokens.device)
        return coins[tokens] == (choice.positions % 2 == 1)


class Gumbel(Mark):
    """Draws with keyed noise in place of random noise (Bagchi et al., arXiv 2511.02083).

    The noise belongs to a position and a token, and is the same in every step and every text. The
    paper also shifts the positions of a text by a secret offset that its detector searches; here
    the offset is 0, which makes detection easier than theirs. At temperature 0 there is no noise.
    """

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer) -> None:
        super().__init__(key, tokenizer)
        self._rows: dict[int, Tensor] = {}

    def noise(self, positions: Tensor, vocab_size: int) -> Tensor:
        """Return the keyed noise of some positions; on a CPU each is computed once."""
        if positions.device.type == "cpu":
            return torch.stack([self._row(at, vocab_size) for at in positions.tolist()])
        tokens = torch.arange(vocab_size, device=positions.device)
        u: Tensor = position_noise(self.key, positions[:, None], tokens)
        return u.log().neg().log()

    def _row(self, at: int, vocab_size: int) -> Tensor:
        """Return the noise of one position, by numpy."""
        if at not in self._rows:
            u = torch.from_numpy(position_noise(self.key, np.array([at]), np.arange(vocab_size)))
            self._rows[at] = u.log().neg().log()
        return self._rows[at]


class Gloaguen(Watermark):
    """Adds δ/2 for each side in expectation over the neighbour (Gloaguen et al., arXiv 2509.24368).

    As in the code released with the paper: the neighbour's 50 likeliest tokens at the sampler's
    temperature, the bias of a side δ over the number of terms, which is 2. All positions of a step
    are biased at once. At temperature 0 the model's own probabilities count. The order is measured
    without the bias, as for every scheme here; theirs, where it is not random, is measured with it.
    """

    def __init__(
        self, key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
    ) -> None:
        self._temperature = temperature or 1.0
        super().__init__(
            key, "expected-bidirectional", delta / 2 / self._temperature,
            top_k=GLOAGUEN_TOP_K, tokenizer=tokenizer,
        )  # fmt: skip
        self.strategy = replace(self.strategy, even_odd_passes=False)

    def biased(self, state: State) -> Tensor:
        """Return the biased logits of the positions to fill."""
        scale, reachable = self._temperature, state.reachable
        some = None if reachable is None else lambda gain: reachable(gain * scale)
        warmer = replace(state, logits=state.logits / scale, reachable=some)
        return super().biased(warmer) * scale


class InEngine:
    """A strategy of ours as an engine writes it that asks an adapter for the bias."""

    def __init__(self, watermark: Watermark) -> None:
        self.watermark = watermark
        self.identity, self.tokenizer = watermark.identity, watermark.tokenizer

    def denoiser(
        self, model: Model, canvas: Canvas, sampler: Sampler, generator: torch.Generator
    ) -> Denoiser:
        """Return what reveals the tokens of a canvas."""
        return EngineDenoiser(model, canvas, sampler, self.watermark, generator)


class EngineDenoiser(Denoiser):
    """A sampler that takes biased logits for the model's own, as engines do with our integrations.

    It gets logits with the bias of every masked position, all at once, and does with them what it
    always does: it draws from them, and measures its confidence on them.
    """

    def _predict(self, covered: Tensor, shape: StepShape) -> Tensor:
        """Return the model's logits with the bias at every masked position."""
        canvas, logits = self.canvas, super()._predict(covered, shape)
        masked = ~canvas.revealed.gather(1, covered)
        positions = torch.where(masked, covered, -1)
        assert self.watermark is not None
        biased = self.watermark.bias(
            canvas.tokens,
            canvas.revealed,
            logits,
            positions,
            covered,
            prompt_mask=canvas.prompt_mask,
        )
        return torch.where(masked[..., None], biased, logits)

    def apply_bias(
        self, positions: Tensor, logits: Tensor, noise: Tensor | None, covered: Tensor
    ) -> Tensor:
        """Return the logits of the positions, which have the bias already."""
        return self._at(positions, logits)


def rows_of(state: State) -> tuple[Tensor, Tensor]:
    """Return where in the logits the positions of a state are; -1 counts as the first."""
    index = state.logit_index(state.positions)
    text = torch.arange(len(index), device=index.device)[:, None]
    return text, index.clamp(min=0)
