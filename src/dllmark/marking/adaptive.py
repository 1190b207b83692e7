"""How much of its bias a text needs: what is adaptive about the strategies that are called so.

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
from dllmark.marking.state import BiasSettings, State, texts_of
from dllmark.relation.greenlist import GreenList

AIM = 0.15
"""How far above γ the share of green pairs is to be with a strategy's own δ; with twice that δ,
twice as far."""

MARGIN = 10
"""How many green pairs more than that end the mark."""


def needed_share(
    texts: Block | State, settings: BiasSettings, scored: Tensor, green: GreenList
) -> Tensor:
    """Return [B], from 0 to 1: how much of the bias the texts need.

    The aim is by the pairs that are written, and green are distinct ones: a text that loops does
    not come nearer.
    """
    found, distinct, written = count_pairs(texts, scored, green)
    aim = AIM * settings.delta / settings.strategy.default_delta
    ahead = found - settings.gamma * distinct - aim * written
    return (1 - ahead / MARGIN).clamp(0, 1)


def weaken(
    biased: Tensor, state: State, settings: BiasSettings, scored: Tensor, green: GreenList
) -> Tensor:
    """Return logits [B, K, V] with as much of their bias as each text needs."""
    index = state.logit_index(state.positions).clamp(min=0)
    plain = state.logits[texts_of(index), index]
    share = needed_share(state, settings, scored, green)[:, None, None]
    # what must not come, of -inf, gets no bias
    weak: Tensor = torch.where(biased == plain, plain, plain + share * (biased - plain))
    return weak.to(biased.dtype)


def count_pairs(
    texts: Block | State, scored: Tensor, green: GreenList
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many green, distinct and written pairs the texts have so far: [B] each.

    Green are distinct ones, as a detector counts.
    """
    (left, right, both), vocab_size = written_pairs(texts, scored), len(scored)
    pairs = torch.where(both, left * vocab_size + right, -1).sort(1).values
    distinct = pairs >= 0
    distinct[:, 1:] &= pairs[:, 1:] != pairs[:, :-1]
    left, right = pairs.clamp(min=0) // vocab_size, pairs.clamp(min=0) % vocab_size
    colours = pair_colours(green, left, right, distinct) & distinct
    return colours.sum(1), distinct.sum(1), both.sum(1)


def written_pairs(texts: Block | State, scored: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the left and right tokens of all places, [B, L - 1] each, and where a pair is written.

    None has a special token, or one of the prompt.
    """
    tokens = torch.where(texts.revealed, texts.tokens, 0).long()  # a mask may be no token
    there = texts.revealed & scored[tokens]
    if texts.prompt_mask is not None:
        there &= ~texts.prompt_mask
    return tokens[:, :-1], tokens[:, 1:], there[:, :-1] & there[:, 1:]
