"""The order of `joint` without its mark, and `adaptive-joint` that keeps it.

`joint` prefers places beside which more is known, under any key. Averaged over all keys it makes a
position as much likelier as that is worth, and none of its tokens likelier than another. A text
written so says nothing about a key, and shows what of the cost of `joint` is its order's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dllmark.marking.adaptive import needed_share
from dllmark.marking.gain import Block, neutral_candidates, weighed_neighbours
from dllmark.marking.watermark import Watermark
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer
from dllmark.sampling.cooling import LOWEST


class JointOrder(Watermark):
    """`joint`, of which every chance is the mean over all keys."""

    name = "joint"

    def __init__(
        self, key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
    ) -> None:
        super().__init__(key, self.name, delta, tokenizer=tokenizer)
        self.temperature = temperature or LOWEST

    def gains(self, block: Block, width: int, vocab_size: int) -> Tensor:
        """Return [B, W, C]: T log E[e^(gain / T)], the pairs of a token being independent."""
        settings, scored = self._settings(vocab_size), self._scored(vocab_size, block.p.device)
        _, weights, inside = weighed_neighbours(block, width, settings.top_k, scored)
        gamma, delta = settings.gamma, settings.delta
        red = torch.full((), math.log1p(-gamma), device=weights.device)
        green = math.log(gamma) + delta / self.temperature * weights
        mean = self.temperature * torch.logaddexp(red, green).sum(-1)
        flat = gamma * delta * weights.sum(-1)
        worth, plain = ((one - gamma * delta * inside)[..., None] for one in (mean, flat))
        neutral = neutral_candidates(block, width, scored)
        return torch.where(
            neutral,
            plain[:, :width] + plain[:, 2:],
            worth[:, :width] + worth[:, 2:],
        )


class Ordered(JointOrder):
    """`adaptive-joint` that stays in the order of its whole δ while a text needs less of the mark.

    What `adaptive-joint` takes back of the mark it takes back of the order too.
    """

    name = "adaptive-joint"

    def gains(self, block: Block, width: int, vocab_size: int) -> Tensor:
        """Return [B, W, C]: the share of the mark that texts need, and of the order the rest."""
        settings, scored = self._settings(vocab_size), self._scored(vocab_size, block.p.device)
        share = needed_share(block, settings, scored, self._green_list(vocab_size))[:, None, None]
        order = super().gains(block, width, vocab_size)
        return Watermark.gains(self, block, width, vocab_size) + (1 - share) * order
