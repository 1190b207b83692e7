"""Keyed noise of positions, found again in a text whose tokens have moved.

Kuditipudi et al. (arXiv 2307.15593) align a text with its key where tokens were deleted or
inserted, and take the cheapest alignment. Here all alignments count, each by how likely it is.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dllmark.experiments.rivals.coins import position_noise
from dllmark.experiments.rivals.scores import NOTHING, Evidence, Scorer
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Ids, Tokenizer

SKIPPED = 0.15
"""How probably the next position has lost its token."""

INSERTED = 0.1
"""How probably the next token was not written by the sampler."""

BORDER = 1 / 200
"""How probably the marked part begins at a token where it did not yet, or ends."""

MOST_POSITIONS = 512
"""Positions a token is looked for at: a text of n tokens has 2n of them, and never more."""

RANDOM_KEYS = 999
"""Keys a text is compared with: the least p-value is 1 in 1,000."""

AT_ONCE = 111
"""Random keys that are computed together: so many fit a processor's cache."""

ROUNDING = 1e-3
"""What two roundings of one score may differ by, at the very most."""

GOES_ON = (1 - INSERTED - BORDER) * (1 - SKIPPED)
"""How probably the next token is the one of the next position."""

Digits = NDArray[np.uint8]
Floats = NDArray[np.floating]


def aligned(key: WatermarkKey, tokenizer: Tokenizer) -> Scorer:
    """Return log L: how much likelier a text is if it was marked and then edited.

    Of the keyed u of a position and a token the first eight binary digits count. L is the mean over
    all monotone alignments of the text's tokens with key positions, of the product of `RATIOS` over
    the tokens that stand at one. It is computed as in a hidden Markov model (`likelihood`).

    The p-value is counted among `RANDOM_KEYS` random keys. One has its digits drawn for each pair
    of a position and a distinct token, once: so a token that meets a position in several ways, or
    stands in the text more than once, has the same digits there, as under a true key. Hence a key
    that did not mark the text scores as one of the random ones does, and the p-value is exact but
    for the number of keys. All texts are compared with the same draws, as `windows` does.
    """

    def score(ids: Ids) -> Evidence:
        words = ids[tokenizer.scored[ids]]
        if not len(words):
            return NOTHING
        tokens, place = np.unique(words, return_inverse=True)
        positions = np.arange(min(2 * len(words), MOST_POSITIONS))
        own_digits = (256 * position_noise(key, positions, tokens[:, None])).astype(np.uint8)
        own = math.log(likelihood(RATIOS, own_digits[:, :, None], place)[0])
        rng = np.random.Generator(np.random.SFC64(0))
        as_high = 0
        for _ in range(RANDOM_KEYS // AT_ONCE):
            digits = _random_digits(rng, (len(tokens), len(positions), AT_ONCE))
            random = np.log(likelihood(RATIOS.astype(np.float32), digits, place))
            as_high += int((random >= own - ROUNDING).sum())
        return Evidence(own, len(words), (as_high + 1) / (RANDOM_KEYS + 1))

    return lambda texts: [score(ids) for ids in texts]


def digit_ratios() -> NDArray[np.float64]:
    """Return [256]: how much likelier the digits of a marked token are than those of any other.

    A marked token's -log(1 - u) is taken for exponential with the mean 2, where that of any other
    has the mean 1: the ratio of their densities is 1 / (2 √(1 - u)), of which this is the mean over
    all u that begin with the same digits.

    >>> digit_ratios()[[0, 192, 255]].round(2).tolist()
    [0.5, 1.0, 16.0]
    """
    left = np.arange(256, -1, -1)
    ratios: NDArray[np.float64] = -16 * np.diff(np.sqrt(left))
    return ratios


RATIOS = digit_ratios()


def likelihood(ratios: Floats, digits: Digits, place: Ids) -> Floats:
    """Return [K]: L under each key, from the digits [T, P, K] of the text's distinct tokens.

    `place` [n] says which of the T tokens each token of the text is. One token after the other,

    inside[j]  L so far, of the alignments whose last aligned token stands at position j,
    before     of those whose marked part has not begun, and `after` of those where it is over.

    Half of the weight is on alignments that begin with the text and with the first position, the
    other half on those that begin at any token and any position. Up to two positions in a row may
    have lost their tokens. The mean of L over random keys is at most 1.
    """
    positions, keys = digits.shape[1:]
    inside = np.zeros((positions + 3, keys), dtype=ratios.dtype)  # two rows of zeros, position -1
    inside[2] = before = 0.5
    after = np.zeros_like(inside[0])
    entering = BORDER / positions / GOES_ON
    matched, skipping = np.empty((2, positions, keys), dtype=ratios.dtype)
    of_token = np.take(GOES_ON * ratios, digits)
    ones = np.ones(len(inside), dtype=ratios.dtype)
    for token in place:
        np.multiply(inside[1:-2], SKIPPED, out=matched)
        matched += inside[2:-1]
        np.multiply(inside[:-3], SKIPPED**2, out=skipping)
        matched += skipping
        matched += before * entering
        matched *= of_token[token]
        after += BORDER * (ones @ inside)
        before *= 1 - BORDER
        inside *= INSERTED
        inside[3:] += matched
    total: Floats = before + after + inside.sum(0)
    return total


def _random_digits(rng: np.random.Generator, shape: tuple[int, ...]) -> Digits:
    """Return random bytes, eight from each number drawn."""
    count = math.prod(shape)
    drawn = rng.integers(0, 2**64, -(-count // 8), dtype=np.uint64)
    return drawn.view(np.uint8)[:count].reshape(shape)
