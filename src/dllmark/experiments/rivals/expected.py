"""Schemes that weigh tokens by how probably they make a green pair, on either side.

Where a neighbour is revealed that is 0 or 1, else the share of its likely tokens with which they
would. Unbiased watermarks of other people are among them, and what is tried before it becomes a
strategy of ours.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllmark.experiments.rivals.marks import Mark, rows_of
from dllmark.marking.bias import add_green, neighbours
from dllmark.marking.repeats import repeating
from dllmark.marking.state import BiasSettings, State
from dllmark.marking.strategies import Strategy
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer

TOP_K = 8
"""Tokens an expectation is over, as in our strategies."""

LEAST = 1e-5
"""Tokens less likely than this count as green with probability γ: they are too many to hash."""

EXPECTED = Strategy("expected", 1.0, backward=True, prediction="expectation")


class Expected(Mark):
    """Knows how probably each token makes a green pair; with `fresh`, one that is not there yet.

    A pair that stands in the text already adds nothing to the count when it comes again: with
    `fresh` it is neither green nor red, so that the mark neither pays for it nor invites it.
    """

    def __init__(
        self,
        key: WatermarkKey,
        tokenizer: Tokenizer,
        delta: float,
        temperature: float,
        *,
        fresh: bool,
    ) -> None:
        super().__init__(key, tokenizer, delta)
        self.temperature, self.fresh = temperature or 1.0, fresh

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return what the sampler draws from; at temperature 0, what the model says."""
        return (logits / self.temperature).softmax(-1)

    def green(self, state: State, side: int, weighed: Tensor) -> Tensor:
        """Return [B, K, V]: how probably each of the tokens to weigh makes a green pair."""
        gamma, vocab_size = self.key.gamma, state.vocab_size
        settings = BiasSettings(EXPECTED, 1.0, gamma, min(TOP_K, vocab_size))
        ids, weights = neighbours(state, settings, (side,))
        scored = self.scored(state)
        weights = torch.where(scored[ids], weights, 0.0)
        green = (gamma * (1 - weights.sum(-1, keepdim=True))).repeat(1, 1, vocab_size)
        some = weighed.flatten(0, 1) if green.device.type == "cpu" else None
        add_green(
            green.view(-1, vocab_size), HashedGreenList(self.key, vocab_size), side,
            ids.flatten(0, 1), weights.flatten(0, 1), some,
        )  # fmt: skip
        counted = weighed & scored
        if self.fresh:
            ids, some = repeating(state, side, scored)
            counted &= ~torch.zeros_like(counted).scatter(2, ids, some.expand_as(ids))
        return torch.where(counted, green, gamma)


class Biased(Expected):
    """δ for each side, times the probability of a green pair, as in `expected-bidirectional`."""

    def bias(self, state: State) -> Tensor:
        """Add δ for each side."""
        logits = state.logits[rows_of(state)]
        weighed = self.probabilities(logits) >= LEAST
        left, right = (self.green(state, side, weighed) for side in (-1, +1))
        return logits + self.delta * (left + right)


class Unbiased(Expected):
    """Draws green tokens up to twice as often: over all keys, each token as often as without a key.

    Under half of all keys the colours are the opposite, and what a token gains under the one half
    it loses under the other. A green share s of the probability becomes min(s / γ, 1), the most
    that leaves no token likelier (Hu et al., arXiv 2310.10669, for lists). The list of the left
    neighbour counts first, then that of the right one.
    """

    def bias(self, state: State) -> Tensor:
        """Return logits whose softmax, at the sampler's temperature, is reweighted."""
        logits = state.logits[rows_of(state)]
        p = self.probabilities(logits)
        weighed, gain = p >= LEAST, torch.zeros_like(p)
        for side in (-1, +1):
            green = self.green(state, side, weighed)
            share = (p * green).sum(-1, keepdim=True).clamp(1e-6, 1 - 1e-6)
            more = self.reweighted(share)
            of_green, of_red = more / share, (1 - more) / (1 - share)
            factor = of_red + green * (of_green - of_red)
            p, gain = p * factor, gain + factor.clamp(min=torch.finfo(p.dtype).tiny).log()
        return logits + self.temperature * gain

    def reweighted(self, share: Tensor) -> Tensor:
        """Return what a green share of the probability becomes."""
        return (share / self.key.gamma).clamp(max=1)


class Sta1(Unbiased):
    """Where a red token was drawn, another is drawn once (STA-1, Mao et al., arXiv 2405.14604)."""

    def reweighted(self, share: Tensor) -> Tensor:
        """Return how probably one of two draws is green."""
        return 2 * share - share**2


class GuidedFresh(Watermark):
    """`guided-bidirectional` that does not prefer what would repeat a pair of the text.

    Else the order would go to such a token first: nothing is as certain as a copy, and a green copy
    adds nothing to the count.
    """

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer, delta: float) -> None:
        super().__init__(key, "guided-bidirectional", delta, tokenizer=tokenizer)
        self.strategy = replace(self.strategy, fresh=True)
