"""`adaptive-joint` and `cooled-joint` with an aim that knows what a detector will ask of the text.

A detector tests a text against the share of green pairs that its key leads to expect of it, where
that is above γ. A mark that only aims above γ is then just missed under lucky keys, or does more
than it needs under all others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllmark.detection.expected import common_pairs
from dllmark.marking.adaptive import MARGIN, count_pairs, written_pairs
from dllmark.marking.gain import Block, candidate_gains
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer

AIM = 0.09
"""How far above the expected share a text is to be with a strategy's own δ; with twice that δ,
twice as far."""


class Expecting(Watermark):
    """Strong until a text is ahead of its aim above what its detector will expect."""

    def __init__(
        self, key: WatermarkKey, tokenizer: Tokenizer, strategy: str, delta: float
    ) -> None:
        super().__init__(key, strategy, delta, tokenizer=tokenizer)
        common = common_pairs(tokenizer)
        excess = common.excess(HashedGreenList(key, tokenizer.vocab_size))
        self.excess = torch.from_numpy(excess[common.place])

    def gains(self, block: Block, width: int, vocab_size: int) -> Tensor:
        """Return [B, W, C]: what `joint` gains, as far as the texts need it."""
        scored, green = self._scored(vocab_size, block.p.device), self._green_list(vocab_size)
        gains = candidate_gains(block, width, self._settings(vocab_size), scored, green)
        found, distinct, written = count_pairs(block, scored, green)
        expected = self.identity.gamma + self.above_gamma(block, scored)
        aim = AIM * self.delta / self.strategy.default_delta
        ahead = found - expected * distinct - aim * written
        return gains * (1 - ahead / MARGIN).clamp(0, 1).float()[:, None, None]

    def above_gamma(self, block: Block, scored: Tensor) -> Tensor:
        """Return [B]: how far above γ the green share is that a detector expects so far."""
        self.excess = self.excess.to(scored.device)
        left, _, both = written_pairs(block, scored)
        total = torch.where(both, self.excess[left.clamp(max=len(self.excess) - 1)], 0.0).sum(1)
        return (total / both.sum(1).clamp(min=1)).clamp(min=0)
