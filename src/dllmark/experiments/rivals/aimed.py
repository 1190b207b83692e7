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
"""The δ of `joint` where a text is behind its aim."""

MARGIN = 10
"""How many green pairs lie between that and no mark."""


class Aimed(Watermark):
    """`joint`, with half of its most where `above` more than γ of the text's pairs are green.

    0.22 gives a z of 5 where 200 tokens are scored.
    """

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer, above: float) -> None:
        super().__init__(key, "joint", MOST, tokenizer=tokenizer)
        self.above = above

    def gains(self, block: Block, width: int, vocab_size: int) -> Tensor:
        """Return [B, W, C]: what the likely tokens of a block add to the count, as it matters."""
        scored = self._scored(vocab_size, block.p.device)
        green, distinct, written = tally(block, scored, self._green_list(vocab_size))
        more = green - self.identity.gamma * distinct
        needed = self.needed(more, distinct, written).clamp(0, 1)
        return super().gains(block, width, vocab_size) * needed[:, None, None]

    def needed(self, more: Tensor, distinct: Tensor, written: Tensor) -> Tensor:
        """Return the share of the most that texts need, by their green pairs more than chance."""
        return 0.5 - (more - self.above * distinct) / MARGIN


class AimedEarly(Aimed):
    """`Aimed` that marks the beginning more strongly, and texts that loop.

    All of its most counts until a text is ahead of its aim, so that 50 tokens have a z of 4 and 200
    one of 6 with 0.15; and the aim is by the pairs that are written: a loop adds no green ones.
    """

    def needed(self, more: Tensor, distinct: Tensor, written: Tensor) -> Tensor:
        """Return the share of the most that texts need, by their green pairs more than chance."""
        return 1 - (more - self.above * written) / MARGIN


def tally(block: Block, scored: Tensor, green: GreenList) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many green, distinct and written pairs the texts have so far: [B] each.

    None has a special token or is of the prompt. Green are distinct ones, as a detector counts.
    """
    tokens, revealed = block.tokens[:, block.start :], block.revealed[:, block.start :]
    there = revealed & scored[tokens]
    both, vocab_size = there[:, :-1] & there[:, 1:], len(scored)
    pairs = torch.where(both, tokens[:, :-1] * vocab_size + tokens[:, 1:], -1).sort(1).values
    distinct = pairs >= 0
    distinct[:, 1:] &= pairs[:, 1:] != pairs[:, :-1]
    left, right = pairs.clamp(min=0) // vocab_size, pairs.clamp(min=0) % vocab_size
    colours = pair_colours(green, left, right, distinct) & distinct
    return colours.sum(1), distinct.sum(1), both.sum(1)
