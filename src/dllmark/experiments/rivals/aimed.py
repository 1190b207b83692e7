"""`joint` that aims for a share of green pairs: as strong as each text needs it to be.

One δ for all marks unsure texts more than they need, which costs quality, and sure ones less, which
are then missed. Here the mark looks at what a text has so far: it rests where that is green enough,
and presses where it is not. That changes no p-value, which is about texts without the mark.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllmark.marking.gain import Block, pair_colours
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import GreenList
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer

MOST = 5.4
"""The δ of `joint` where a text is far from its aim."""

MARGIN = 10
"""How many green pairs lie between no mark and one of that δ."""


class Aimed(Watermark):
    """`joint`, with half of its most where a text has its aim of green pairs so far.

    The aim is so much above γ: 0.22 gives a z of 6 where 190 pairs are counted.
    """

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer, above: float) -> None:
        super().__init__(key, "joint", MOST, tokenizer=tokenizer)
        self.aim = key.gamma + above

    def gains(self, block: Block, width: int, vocab_size: int) -> Tensor:
        """Return [B, W, C]: what the likely tokens of a block add to the count, as it matters."""
        scored = self._scored(vocab_size, block.p.device)
        green, pairs = tally(block, scored, self._green_list(vocab_size))
        needed = (0.5 + (self.aim * pairs - green) / MARGIN).clamp(0, 1)
        return super().gains(block, width, vocab_size) * needed[:, None, None]


def tally(block: Block, scored: Tensor, green: GreenList) -> tuple[Tensor, Tensor]:
    """Return how many green pairs, and how many pairs, the texts have so far: [B] each.

    As a detector counts: each distinct pair once, and none with a special token or of the prompt.
    """
    tokens, revealed = block.tokens[:, block.start :], block.revealed[:, block.start :]
    there = revealed & scored[tokens]
    both, vocab_size = there[:, :-1] & there[:, 1:], len(scored)
    pairs = torch.where(both, tokens[:, :-1] * vocab_size + tokens[:, 1:], -1).sort(1).values
    distinct = pairs >= 0
    distinct[:, 1:] &= pairs[:, 1:] != pairs[:, :-1]
    left, right = pairs.clamp(min=0) // vocab_size, pairs.clamp(min=0) % vocab_size
    return (pair_colours(green, left, right, distinct) & distinct).sum(1), distinct.sum(1)
