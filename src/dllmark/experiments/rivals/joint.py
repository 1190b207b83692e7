"""A mark that chooses position and token together, as the sampler itself does.

LLaDA's sampler draws a token for every masked position and writes the one that the model is surest
of. So what it writes next is one draw of a pair (position, token), of which the distribution is
known: a token is drawn, and every other position has drawn one that is less sure. Marks that bias
each position's token change that distribution twice, since a token that is less likely is also
written later. `Joint` weighs the pairs themselves: of all marks that make as many green pairs in a
step, it is the one nearest to the unmarked sampler (in Kullback-Leibler divergence).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllmark.errors import InputError
from dllmark.experiments.rivals.expected import repeated
from dllmark.experiments.rivals.marks import rows_of
from dllmark.marking.state import State
from dllmark.marking.watermark import Watermark
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer
from dllmark.sampling.confidence import confidence, draw, warp_logits
from dllmark.sampling.loop import Canvas, Denoiser, StepShape, write
from dllmark.sampling.settings import Llada

if TYPE_CHECKING:
    from dllmark.models.loading import Model
    from dllmark.sampling.settings import Sampler

CANDIDATES = 32
"""The likeliest tokens of a position, which are weighed. What else is drawn is written as it is."""

LEAST = 1e-12
"""Probabilities below count as this."""


class Joint:
    """Makes a position and its token e^δ times as likely for each green pair that they add.

    A neighbour that is not revealed counts by its probabilities. A pair of tokens that stands in
    the text already gains nothing: to repeat it would add nothing to the count.
    """

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer, delta: float) -> None:
        self.watermark = Watermark(key, "expected-bidirectional", delta, tokenizer=tokenizer)
        self.identity, self.tokenizer = key.identity, tokenizer

    def denoiser(
        self, model: Model, canvas: Canvas, sampler: Sampler, generator: torch.Generator
    ) -> Denoiser:
        """Return what reveals the tokens of a canvas under this mark."""
        return JointDenoiser(self, model, canvas, sampler, generator)

    def gain(self, state: State) -> Tensor:
        """Return [B, K, V]: δ for each green pair that a token makes, less γδ for each side.

        Of a neighbour that is not revealed only the likeliest tokens count as green. So under every
        key a place gains less, the less is known of its neighbours, and is written later.
        """
        at, last = state.positions, state.length - 1
        chosen = state.logits[rows_of(state)]
        sides = 2 - (at == 0).float() - (at == last).float()
        mean = self.identity.gamma * self.watermark.delta * sides[..., None]
        gain = torch.where(chosen.isfinite(), self.watermark.biased(state) - chosen - mean, 0.0)
        return gain.masked_fill(repeated(state, -1) | repeated(state, +1), 0.0)


class JointDenoiser(Denoiser):
    """Writes what `Joint` chooses, one token after the other."""

    def __init__(
        self,
        mark: Joint,
        model: Model,
        canvas: Canvas,
        sampler: Sampler,
        generator: torch.Generator,
    ) -> None:
        if not isinstance(sampler, Llada) or sampler.order != "low_confidence":
            raise InputError("joint writes in LLaDA's low_confidence order alone")
        super().__init__(model, canvas, sampler, mark.watermark, generator)
        self.mark, self.llada = mark, sampler

    def _step(self, shape: StepShape) -> None:
        """Do one step of that shape at `first`, for `count` tokens."""
        if not self.mark.watermark.delta:
            super()._step(shape)
            return
        canvas = self.canvas
        at = self.first + torch.arange(shape.width + shape.beyond, device=self.first.device)
        covered = at.repeat(len(canvas.tokens), 1)
        logits = self._predict(covered, shape)
        inside, block = logits[:, : shape.width], at[: shape.width]
        noise = self.draw_noise(inside, block)
        score = confidence(self.llada, inside, inside, noise, self.model.end_ids, self.generator)
        own = Draws(draw(warp_logits(self.llada, inside), noise), score)
        likely = inside.topk(min(CANDIDATES, inside.shape[-1])).indices
        limit = torch.full_like(score[:, 0], torch.inf)
        for number in range(shape.most):
            masked = ~canvas.revealed.index_select(1, block)
            next_ = own.score.masked_fill(~masked, -torch.inf).argmax(1, keepdim=True)
            place, token = self._choose(logits, likely, masked, own, next_, limit, covered)
            wanted = (self.count > number) & masked.any(1)
            positions = torch.where(wanted, block[place], -1)
            write(canvas, block, positions[:, None], token[:, None])
            limit = own.score.gather(1, next_)[:, 0]

    def _choose(
        self,
        logits: Tensor,
        likely: Tensor,
        masked: Tensor,
        own: Draws,
        next_: Tensor,
        limit: Tensor,
        covered: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the place in the block and the token, [B] each, to write.

        The sampler's own are at `next_` [B, 1]. They stay as often as the mark allows, and always
        where the token is none of the likely ones.
        """
        canvas, width = self.canvas, masked.shape[1]
        inside = logits[:, :width]
        some = torch.zeros_like(inside, dtype=torch.bool).scatter(2, likely, True)
        positions = torch.where(masked, covered[:, :width], -1)
        state = State(canvas.tokens, canvas.revealed, logits, positions, covered, lambda _: some)
        gain = self.mark.gain(state).gather(2, likely).flatten(1)
        chances = log_chances(self.llada, inside, likely, masked, limit).flatten(1)
        token = own.tokens.gather(1, next_)
        same = likely[torch.arange(len(likely), device=likely.device), next_[:, 0]] == token
        index = next_[:, 0] * likely.shape[2] + same.int().argmax(1)
        if self.llada.temperature:
            index = reweighed(chances, gain, index, self.generator)
        else:
            index = (chances + gain).argmax(1)
        kept = ~same.any(1)
        chosen = likely.flatten(1).gather(1, index[:, None])[:, 0]
        place = torch.where(kept, next_[:, 0], index // likely.shape[2])
        return place, torch.where(kept, token[:, 0], chosen)


@dataclass(frozen=True)
class Draws:
    """What the sampler drew for the places of a block, [B, W], and in which order it writes it."""

    tokens: Tensor
    score: Tensor


def reweighed(chances: Tensor, gain: Tensor, own: Tensor, generator: torch.Generator) -> Tensor:
    """Return draws [B] from chances · e^gain, [B, N] and both logs, that are `own` if they can be.

    `own` [B] is a draw from the chances. It stays unless it has become less likely, and then with
    the share that is left of it; else what has become likelier is drawn.
    """
    before, after = chances.softmax(1), (chances + gain).softmax(1)
    u = torch.rand(
        (len(own), 1 + chances.shape[1]),
        generator=generator,
        device=chances.device,
        dtype=torch.float64,
    )
    was, is_now = (one.gather(1, own[:, None])[:, 0] for one in (before, after))
    likelier = (after - before).clamp(min=0).log() - u[:, 1:].log().neg().log()
    return torch.where(u[:, 0] * was <= is_now, own, likelier.argmax(1))


def log_chances(
    sampler: Llada, logits: Tensor, tokens: Tensor, masked: Tensor, limit: Tensor | None = None
) -> Tensor:
    """Return [B, W, C]: the log of the chance that the sampler writes these tokens next, and there.

    The tokens [B, W, C] are the likeliest of each position, best first. One is written when its
    position draws it and all other masked positions draw what the model is less sure of. None was
    surer than the `limit` [B], as that has been written before. At temperature 0 nothing is drawn:
    it is how sure the model is, of which the sampler takes the highest.
    """
    sure = logits.log_softmax(-1).gather(2, tokens)
    out = ~masked[..., None].expand_as(sure)
    if sampler.temperature == 0:
        return sure.masked_fill(out, -torch.inf)
    chance = warp_logits(sampler, logits).softmax(-1).gather(2, tokens)
    if limit is not None:
        out = out | (sure > limit[:, None, None])
    rest = (1 - chance.sum(-1, keepdim=True)).clamp(min=0)
    # [B, W, C + 1]: the chance of a position to draw none of its so many surest tokens
    tail = torch.cat([chance, rest], 2).flip(2).cumsum(2).flip(2).clamp(min=LEAST, max=1)
    batch, width, count = tokens.shape
    asked = (-sure).view(batch, 1, width * count).expand(-1, width, -1).contiguous()
    surer = torch.searchsorted((-sure).contiguous(), asked)
    less = tail.gather(2, surer).log().masked_fill(~masked[..., None], 0.0)
    itself = torch.eye(width, dtype=torch.bool, device=logits.device)[None, :, :, None]
    others = less.view(batch, width, width, count).masked_fill(itself, 0.0).sum(1)
    return (chance.clamp(min=LEAST).log() + others).masked_fill(out, -torch.inf)
