"""What is `joint` of the strategies: position and token are chosen together, as the sampler does.

LLaDA's sampler draws a token for every masked position and writes the one that the model is surest
of. So what it writes next is one draw of a pair (position, token), of which the distribution is
known: a token is drawn, and every other position has drawn one that is less sure. Marks that bias
each position's token change that distribution twice, since a token that is less likely is also
written later. `joint` weighs the pairs themselves: of all marks that gain as much in a step, it is
the one nearest to the unmarked sampler (in Kullback-Leibler divergence).

δ is in logits, as everywhere: like them it is divided by the temperature. So the mark is as strong
where the sampler is sure. With `adaptive-joint` it is δ for texts that need it, and less for others
(`dllmark.marking.adaptive`); `cooled-joint` also keeps the text as sure as without the mark
(`dllmark.sampling.cooling`).

Where a sampler is told to write from left to right the position is given, and its tokens alone are
weighed.

Where a step writes several tokens, each is weighed as if the step began with it. The pair of two
neighbours can then carry no mark, since they are drawn without knowledge of each other: a sampler
that keeps them `apart` marks more.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dllmark.marking.gain import Block
from dllmark.sampling.canvas import write
from dllmark.sampling.choice import away_from, beside
from dllmark.sampling.confidence import draw, warp_logits
from dllmark.sampling.cooling import LOWEST, cooled
from dllmark.sampling.denoiser import Denoiser, StepShape
from dllmark.sampling.settings import Llada

CANDIDATES = 32
"""The likeliest tokens of a position, which are weighed. What else is drawn is written as it is."""

LEAST = 1e-12
"""What rounding hides of the tokens of a position that are no candidates."""

NEVER = -1e9
"""The log of the chance of what top_p leaves out: none, and still a number."""

OTHER_SEED = 0x5EED
"""By what the seed of the mark's draws differs from the sampler's."""


class JointDenoiser(Denoiser):
    """Makes a position and its token e^(δ/T) times as likely for each green pair that they add.

    The sampler's own choice stays as often as the mark allows, and always where its token is none
    of the likely ones: a strength of 0 changes nothing. What the mark draws comes from `redraws`,
    so that the sampler's own draws are those of unmarked text.
    """

    def generators(self) -> list[torch.Generator]:
        """Return the sampler's source of randomness and the mark's own."""
        seed = self.generator.initial_seed() ^ OTHER_SEED
        self.redraws = torch.Generator(self.generator.device).manual_seed(seed)
        return [self.generator, self.redraws]

    def fill(self, logits: Tensor, noise: Tensor | None, covered: Tensor, shape: StepShape) -> None:
        """Choose the tokens of a step one after the other, each with its place; write them."""
        assert isinstance(self.sampler, Llada) and self.watermark is not None
        canvas, width = self.canvas, shape.width
        places = covered[0, :width]
        warped, certain = warp_logits(self.sampler, logits[:, :width]), logits.log_softmax(-1)
        drawn = draw(warped, noise)
        temperature = self.sampler.temperature or LOWEST
        if not self.sampler.temperature:
            warped = warped / temperature
        score = certain[:, :width].gather(2, drawn[..., None])[..., 0]
        likely = logits.topk(min(CANDIDATES, logits.shape[-1])).indices
        sure = certain.gather(2, likely)
        chance = warped.log_softmax(-1).gather(2, likely[:, :width])
        # what this step writes counts from the next step on: beside it, logits are of before
        block = Block(
            canvas.tokens, canvas.revealed, self.first, likely, sure.exp(), canvas.prompt_mask
        )
        gain = self.watermark.gains(block, width, logits.shape[-1]) / temperature
        masked = ~canvas.revealed.index_select(1, places)
        near, chosen, tokens = torch.zeros_like(masked), [], []
        for number in range(shape.most):
            free = away_from(near, masked)
            if self.sampler.order == "left_to_right":
                free = free & (free.cumsum(1) == 1)
            chances = log_chances(sure[:, :width], chance, free, logits.shape[-1])
            first = score.masked_fill(~free, -torch.inf).argmax(1, keepdim=True)
            weights = chances + gain
            if self.watermark.strategy.cooled:
                weights = cooled(chances, weights, sure[:, :width], self.sampler.temperature)
            place, token = self._chosen(chances, weights, likely[:, :width], drawn, first)
            wanted = (self.count > number) & masked.any(1)
            chosen.append(torch.where(wanted, places[place], -1))
            tokens.append(token)
            if self.sampler.apart:
                near = near | beside(place, masked)
            masked = masked.scatter(1, place[:, None], False)
        write(canvas, places, torch.stack(chosen, 1), torch.stack(tokens, 1))

    def _chosen(
        self, chances: Tensor, weights: Tensor, likely: Tensor, drawn: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return a place in the block and its token, [B] each; the sampler's own are at `first`."""
        token = drawn.gather(1, first)
        here = likely.gather(1, first[..., None].expand(-1, -1, likely.shape[2]))[:, 0] == token
        own = first[:, 0] * likely.shape[2] + here.int().argmax(1)
        index = own.clone()
        marked = slice(1) if self.canvas.pair else slice(None)
        chances, weights = chances[marked].flatten(1), weights[marked].flatten(1)
        if self.sampler.temperature:
            index[marked] = redrawn(chances, weights, own[marked], self.redraws)
        else:
            index[marked] = weights.argmax(1)
        chosen = likely.flatten(1).gather(1, index[:, None])[:, 0]
        known = here.any(1)
        place = torch.where(known, index // likely.shape[2], first[:, 0])
        return place, torch.where(known, chosen, token[:, 0])


def redrawn(chances: Tensor, weights: Tensor, own: Tensor, generator: torch.Generator) -> Tensor:
    """Return draws [B] by the weights that are `own` if they can be; logs [B, N] of both are given.

    `own` [B] is a draw by the chances. It stays unless it has become less likely, and then with
    the share that is left of it; else what has become likelier is drawn.
    """
    before, after = chances.softmax(1), weights.softmax(1)
    u = torch.rand(
        (len(own), 1 + chances.shape[1]),
        generator=generator,
        device=chances.device,
        dtype=torch.float64,
    )
    was, is_now = (one.gather(1, own[:, None])[:, 0] for one in (before, after))
    likelier = (after - before).clamp(min=0).log() - u[:, 1:].log().neg().log()
    return torch.where(u[:, 0] * was <= is_now, own, likelier.argmax(1))


def log_chances(sure: Tensor, chance: Tensor, masked: Tensor, vocab_size: int) -> Tensor:
    """Return [B, W, C]: the log of the chance that the sampler writes these tokens next, and there.

    Of the likeliest tokens of each position, best first, it is given how sure the model is (`sure`)
    and how probably the sampler draws it (`chance`), logarithms [B, W, C] both. A token is written
    when its position draws it and all other masked positions draw what the model is less sure of.
    What rounding hides of a position's other tokens, none of which is likelier than these, is
    bounded by their number.
    """
    rest = (1 - chance.exp().sum(-1, keepdim=True)).clamp(min=LEAST).log()
    rest = rest.minimum(chance[..., -1:] + math.log(vocab_size)).clamp(min=NEVER)
    # [B, W, C + 1]: how probably a position draws none of its so many surest tokens
    tail = torch.cat([chance, rest], 2).flip(2).logcumsumexp(2).flip(2).clamp(max=0)
    batch, width, count = sure.shape
    asked = (-sure).view(batch, 1, width * count).expand(-1, width, -1).contiguous()
    surer = torch.searchsorted((-sure).contiguous(), asked)
    less = tail.gather(2, surer).masked_fill(~masked[..., None], 0.0)
    itself = torch.eye(width, dtype=torch.bool, device=sure.device)[None, :, :, None]
    others = less.view(batch, width, width, count).masked_fill(itself, 0.0).sum(1)
    return (chance + others).masked_fill(~masked[..., None], -torch.inf)
