"""The order of `joint` without its mark.

`joint` prefers places beside which more is known, under any key. A text that is written in the mean
of these orders says nothing about a key, and shows what of the cost of `joint` is its order's.
"""

from __future__ import annotations

from torch import Tensor

from dllmark.marking.gain import Block, order_gains
from dllmark.marking.watermark import Watermark
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer


class JointOrder(Watermark):
    """`joint`, of which every chance is the mean over all keys."""

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer, delta: float) -> None:
        super().__init__(key, "joint", delta, tokenizer=tokenizer)

    def gains(self, block: Block, width: int, vocab_size: int, temperature: float) -> Tensor:
        """Return [B, W, C]: what a place is worth whichever of its pairs are green."""
        settings, scored = self._settings(vocab_size), self._scored(vocab_size, block.p.device)
        return order_gains(block, width, settings, scored, temperature)
