"""A mark that chooses position and token together, as the sampler itself does.

LLaDA's sampler draws a token for every masked position and writes the one that the model is surest
of. So what it writes next is one draw of a pair (position, token), of which the distribution is
known: a token is drawn, and every other position has drawn one that is less sure. Marks that bias
each position's token change that distribution twice, since a token that is less likely is also
written later. `Joint` weighs the pairs themselves: of all marks that make as many green pairs in a
step, it is the one nearest to the unmarked sampler (in Kullback-Leibler divergence).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllmark.errors import InputError
from dllmark.experiments.rivals.expected import repeated
from dllmark.marking.state import State
from dllmark.marking.watermark import Watermark
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer
from dllmark.sampling.confidence import warp_logits
from dllmark.sampling.loop import Canvas, Denoiser, StepShape, write
from dllmark.sampling.settings import Llada

if TYPE_CHECKING:
    from dllmark.models.loading import Model
    from dllmark.sampling.settings import Sampler

CANDIDATES = 32
"""The likeliest tokens of a position, which alone are written; the others still count as drawn."""

LEAST = 1e-12
"""Probabilities below count as this."""


class Joint:
    """Makes a pair of position and token e^δ times as likely for each green pair it adds.

    With `tournament` nothing is added: two draws are made, and the greener one is written, which
    over all keys leaves every draw as likely as it was.
    """

    def __init__(
        self, key: WatermarkKey, tokenizer: Tokenizer, delta: float, *, fresh: bool = True,
        strategy: str = "expected-bidirectional", tournament: bool = False,
    ) -> None:  # fmt: skip
        self.watermark = Watermark(key, strategy, delta or 1.0, tokenizer=tokenizer)
        self.identity, self.tokenizer = key.identity, tokenizer
        self.fresh, self.tournament = fresh, tournament

    def denoiser(
        self, model: Model, canvas: Canvas, sampler: Sampler, generator: torch.Generator
    ) -> Denoiser:
        """Return what reveals the tokens of a canvas under this mark."""
        return JointDenoiser(self, model, canvas, sampler, generator)

    def gain(self, state: State) -> Tensor:
        """Return [B, K, V]: δ for each green pair that a token makes, less the mean of that."""
        at, last = state.positions, state.length - 1
        chosen = state.logits[rows(state)]
        sides = 2 - (at == 0).float() - (at == last).float()
        mean = self.identity.gamma * self.watermark.delta * sides[..., None]
        gain = self.watermark.biased(state) - chosen - mean
        gain = torch.where(chosen.isfinite(), gain, 0.0)
        if self.fresh:
            gain = gain.masked_fill(repeated(state, -1) | repeated(state, +1), 0.0)
        return gain


class JointDenoiser(Denoiser):
    """Writes what `Joint` chooses, one pair after the other."""

    def __init__(
        self, mark: Joint, model: Model, canvas: Canvas, sampler: Sampler,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        if not isinstance(sampler, Llada) or sampler.order not in ("low_confidence", "random"):
            raise InputError("a joint mark is for LLaDA's low-confidence or random order")
        super().__init__(model, canvas, sampler, mark.watermark, generator)
        self.mark = mark

    def _step(self, shape: StepShape) -> None:
        at = self.first + torch.arange(shape.width + shape.beyond, device=self.first.device)
        covered = at.repeat(len(self.canvas.tokens), 1)
        logits = self._predict(covered, shape)
        inside, block = logits[:, : shape.width], at[: shape.width]
        for number in range(shape.most):
            masked = ~self.canvas.revealed.index_select(1, block)
            place, token = self._pick(logits, inside, masked, block, covered)
            wanted = (self.count > number) & masked.any(1)
            position = torch.where(wanted, block[place], -1)
            write(self.canvas, block, position[:, None], token[:, None])

    def _pick(
        self, logits: Tensor, inside: Tensor, masked: Tensor, block: Tensor, covered: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the place in the block and the token, [B] each, to write next."""
        likely = inside.topk(min(CANDIDATES, inside.shape[-1]))
        chances = commit_chances(self.sampler, inside, likely.indices, masked)
        positions = torch.where(masked, block, -1)
        some = torch.zeros_like(inside, dtype=torch.bool).scatter(2, likely.indices, True)
        state = State(self.canvas.tokens, self.canvas.revealed, logits, positions, covered,
                      lambda _: some)  # fmt: skip
        gain = self.mark.gain(state).gather(2, likely.indices)
        weight = (chances + gain).flatten(1)
        if self.sampler.temperature == 0:
            return self._at_best(weight.argmax(1), likely.indices)
        if self.mark.tournament:
            weight = won(chances.flatten(1), gain.flatten(1))
        u = torch.rand(weight.shape, generator=self.generator, device=weight.device,
                       dtype=torch.float64)  # fmt: skip
        return self._at_best((weight - u.log().neg().log()).argmax(1), likely.indices)

    def _at_best(self, best: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        token = tokens.flatten(1).gather(1, best[:, None])[:, 0]
        return best // tokens.shape[2], token


def won(chances: Tensor, gain: Tensor) -> Tensor:
    """Return the log-probability [B, N] that each of N draws is the greener of two."""
    p = chances.softmax(1)
    order = gain.argsort(1)
    below = p.gather(1, order).cumsum(1)
    sorted_gain = gain.gather(1, order).contiguous()
    first = torch.searchsorted(sorted_gain, gain.contiguous())
    last = torch.searchsorted(sorted_gain, gain.contiguous(), right=True)
    padded = torch.cat([torch.zeros_like(below[:, :1]), below], 1)
    worse, not_better = padded.gather(1, first), padded.gather(1, last)
    return (p * (worse + not_better)).clamp(min=LEAST**2).log()


def commit_chances(sampler: Llada, logits: Tensor, tokens: Tensor, masked: Tensor) -> Tensor:
    """Return log P [B, W, C]: that the sampler writes these tokens [B, W, C] next, and there.

    A token is written when its position draws it and all other masked positions draw less sure
    ones. In the random order every position is as likely as another.
    """
    if sampler.temperature == 0:
        sure = logits.log_softmax(-1).gather(2, tokens)
        return sure.masked_fill(~masked[..., None], -torch.inf)
    q = warp_logits(sampler, logits).softmax(-1)
    drawn = q.gather(2, tokens)
    log_drawn = drawn.clamp(min=LEAST).log()
    if sampler.order == "random":
        return log_drawn.masked_fill(~masked[..., None], -torch.inf)
    sure = logits.log_softmax(-1).gather(2, tokens)
    batch, width, count = tokens.shape
    rest = (1 - drawn.sum(-1, keepdim=True)).clamp(min=0)
    # [B, W, C + 1]: the chance to draw none of the so many surest tokens
    tail = torch.cat([drawn, rest], 2).flip(2).cumsum(2).flip(2).clamp(min=LEAST, max=1)
    asked = sure.view(batch, 1, width * count).expand(-1, width, -1)
    surer = torch.searchsorted((-sure).contiguous(), (-asked).contiguous())
    less = tail.gather(2, surer).log().masked_fill(~masked[..., None], 0.0)
    less = less.view(batch, width, width, count)
    own = torch.eye(width, dtype=torch.bool, device=logits.device)[None, :, :, None]
    others = less.masked_fill(own, 0.0).sum(1)
    return (log_drawn + others).masked_fill(~masked[..., None], -torch.inf)


def rows(state: State) -> tuple[Tensor, Tensor]:
    """Return where in the logits the positions of a state are; -1 counts as the first."""
    index = state.logit_index(state.positions)
    text = torch.arange(len(index), device=index.device)[:, None]
    return text, index.clamp(min=0)
