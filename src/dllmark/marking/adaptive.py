"""How much of its bias a text needs: what makes `joint` an `adaptive-joint`.

One δ for all marks unsure texts more than they need, which costs quality, and sure ones less, which
are then missed. Here the mark looks at what a text has so far: δ counts in full until the text has
the green pairs that it is to have, and less and less beyond. So a text gets the most at its
beginning, and one of few tokens is found as well. No p-value changes by it: that is about texts
without the mark.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllmark.marking.gain import Block, pair_colours
from dllmark.marking.state import BiasSettings
from dllmark.relation.greenlist import GreenList

AIM = 1 / 36
"""How far above γ the share of green pairs is to be, for each 1 of δ: 0.15 with δ 5.4."""

MARGIN = 10
"""How many green pairs more than that end the mark."""


def needed_share(block: Block, settings: BiasSettings, scored: Tensor, green: GreenList) -> Tensor:
    """Return [B], from 0 to 1: how much of the bias the texts of a block need.

    The aim is by the pairs that are written, and green are distinct ones: a text that loops does
    not come nearer.
    """
    found, distinct, written = count_pairs(block, scored, green)
    ahead = found - settings.gamma * distinct - AIM * settings.delta * written
    return (1 - ahead / MARGIN).clamp(0, 1)


def count_pairs(block: Block, scored: Tensor, green: GreenList) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many green, distinct and written pairs the texts have so far: [B] each.

    None has a special token or is of the prompt. Green are distinct ones, as a detector counts.
    """
    tokens, revealed = block.tokens[:, block.start :], block.revealed[:, block.start :]
    tokens = torch.where(revealed, tokens, 0)  # a mask may be no token of the model
    there = revealed & scored[tokens]
    both, vocab_size = there[:, :-1] & there[:, 1:], len(scored)
    pairs = torch.where(both, tokens[:, :-1] * vocab_size + tokens[:, 1:], -1).sort(1).values
    distinct = pairs >= 0
    distinct[:, 1:] &= pairs[:, 1:] != pairs[:, :-1]
    left, right = pairs.clamp(min=0) // vocab_size, pairs.clamp(min=0) % vocab_size
    colours = pair_colours(green, left, right, distinct) & distinct
    return colours.sum(1), distinct.sum(1), both.sum(1)
