"""How much a text looks marked under each scheme: the scheme's score, and its p-value.

Every p-value is the probability, over random keys, that a text which does not depend on the key
scores as high. It is exact, or counted among many random keys where no formula is known. So it does
not rest on a text's tokens being independent, which repeated ones are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.detector import Detector
from dllmark.detection.stats import binomial_tail, z_score
from dllmark.experiments.rivals.coins import position_noise, side_lists, token_coins
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Ids, Tokenizer

WINDOW = 8
"""dgMARK's windows, in tokens."""

RANDOM_KEYS = 9_999
"""Keys a score without a formula is compared with: the least p-value is 1 in 10,000."""

MOST_DISTINCT = 512
"""Distinct tokens of most texts: so many coins are tossed at once, and more for longer texts."""


@dataclass(frozen=True)
class Evidence:
    """What a scheme finds in one text.

    z        the scheme's own standardised score
    count    how many pairs or tokens it rests on
    p_value  the chance of such a score where the key did not mark the text
    """

    z: float
    count: int
    p_value: float


Scorer = Callable[[Sequence[Ids]], list[Evidence]]
"""Scores the ids of texts, under the key it was made for."""

NOTHING = Evidence(0.0, 0, 1.0)
"""What is found in a text without a token to score."""


def green_pairs(key: WatermarkKey, tokenizer: Tokenizer) -> Scorer:
    """Count green pairs, each distinct one once, as `dllmark detect` does (KGW's detector)."""
    detector = Detector(key, tokenizer)
    return lambda texts: [
        Evidence(found.z, found.pairs, found.p_value) for found in detector.detect_many(texts)
    ]


def unigram(key: WatermarkKey, tokenizer: Tokenizer) -> Scorer:
    """Count green tokens, each distinct one once (the detector of Zhao et al. for unique tokens).

    Exact: distinct tokens are independent coins.
    """
    green = token_coins(key, "unigram", tokenizer.vocab_size)

    def score(ids: Ids) -> Evidence:
        distinct = np.unique(ids[tokenizer.scored[ids]])
        return _coins(int(green[distinct].sum()), len(distinct), key.gamma)

    return lambda texts: [score(ids) for ids in texts]


def left_and_right(key: WatermarkKey, tokenizer: Tokenizer) -> Scorer:
    """Sum m_L + m_R - 1 over the tokens that have both neighbours (LR-DWM, arXiv 2601.12376).

    m_L says whether a token is on the list of its left neighbour, m_R on that of its right one. A
    distinct pair counts once on each side, where the paper counts all and measures their spread on
    people's texts: so the sum of m_L and m_R is binomial, and z is the sum over its own deviation.
    """
    left_list, right_list = side_lists(key, tokenizer.vocab_size)

    def score(ids: Ids) -> Evidence:
        scored = tokenizer.scored[ids]
        inner = np.flatnonzero(scored[:-2] & scored[1:-1] & scored[2:]) + 1
        pairs = (
            (left_list, ids[inner - 1], ids[inner]),
            (right_list, ids[inner], ids[inner + 1]),
        )
        matches = count = 0
        for green, first, second in pairs:
            distinct = np.unique(np.stack([first, second]), axis=1)
            matches += int(green.pairs(*distinct).sum())
            count += distinct.shape[1]
        return _coins(matches, count, key.gamma)

    return lambda texts: [score(ids) for ids in texts]


def parity(key: WatermarkKey, tokenizer: Tokenizer) -> Scorer:
    """Count tokens whose coin is the parity of their position (dgMARK, arXiv 2601.22985).

    z is the paper's, matches against n/2. The p-value is exact: a token that stands at e even and o
    odd positions adds e or o matches, one coin deciding for all of them.
    """
    coins = token_coins(key, "dgmark", tokenizer.vocab_size)

    def score(ids: Ids) -> Evidence:
        tokens, even, odd = _occurrences(ids, tokenizer)
        count = int((even + odd).sum())
        if not count:
            return NOTHING
        matches = int(np.where(coins[tokens], odd, even).sum())
        chances = np.zeros(count + 1)
        chances[0] = 1.0
        for one, other in zip(even.tolist(), odd.tolist(), strict=True):
            chances = (_moved(chances, one) + _moved(chances, other)) / 2
        p_value = min(1.0, float(chances[matches:].sum()))
        return Evidence(float(z_score(matches, count, 0.5)), count, p_value)

    return lambda texts: [score(ids) for ids in texts]


def windows(key: WatermarkKey, tokenizer: Tokenizer) -> Scorer:
    """Return the mean of z² over all windows of 8 tokens, dgMARK's score for edited texts.

    The p-value is counted among random keys: `RANDOM_KEYS` ways the coins of the text's tokens can
    fall.
    """
    coins = token_coins(key, "dgmark", tokenizer.vocab_size)

    def score(ids: Ids) -> Evidence:
        scored = np.flatnonzero(tokenizer.scored[ids])
        if len(scored) < WINDOW:
            return NOTHING
        tokens, place = np.unique(ids[scored], return_inverse=True)
        odd = (scored % 2 == 1)[:, None]
        own = int(_excess(coins[tokens][place][:, None] == odd)[0])
        random = _random_coins(-(-len(tokens) // MOST_DISTINCT))
        as_high = int((_excess(random[place] == odd) >= own).sum())
        mean = own / (len(scored) - WINDOW + 1) / (WINDOW / 4)
        return Evidence(mean, len(scored), (as_high + 1) / (RANDOM_KEYS + 1))

    return lambda texts: [score(ids) for ids in texts]


def position_exponentials(key: WatermarkKey, tokenizer: Tokenizer) -> Scorer:
    """Sum -log(1 - u) over the keyed u of each position and its token (Aaronson's Gumbel score).

    Exact: over random keys it is the sum of n exponentials, a Gamma variable.
    """

    def score(ids: Ids) -> Evidence:
        positions = np.flatnonzero(tokenizer.scored[ids])
        count = len(positions)
        if not count:
            return NOTHING
        total = -float(np.log1p(-position_noise(key, positions, ids[positions])).sum())
        return Evidence((total - count) / math.sqrt(count), count, gamma_tail(total, count))

    return lambda texts: [score(ids) for ids in texts]


def gamma_tail(total: float, count: int) -> float:
    """Return the chance that `count` exponential variables add up to `total` or more.

    >>> round(gamma_tail(1.0, 1), 4)
    0.3679
    """
    k = np.arange(count)
    logs = np.array([math.lgamma(number + 1) for number in range(count)])
    terms = k * math.log(total) - total - logs if total > 0 else np.zeros(1)
    largest = float(terms.max())
    return min(1.0, math.exp(largest) * float(np.exp(terms - largest).sum()))


def _coins(heads: int, count: int, gamma: float) -> Evidence:
    """Return the evidence of independent coins that fall True with probability γ."""
    p_value = float(binomial_tail(heads, count, gamma))
    return Evidence(float(z_score(heads, count, gamma)), count, p_value)


def _occurrences(ids: Ids, tokenizer: Tokenizer) -> tuple[Ids, Ids, Ids]:
    """Return the distinct scored tokens, and how often each stands at even and at odd positions."""
    scored = np.flatnonzero(tokenizer.scored[ids])
    tokens, place = np.unique(ids[scored], return_inverse=True)
    odd = scored % 2 == 1
    even_count = np.bincount(place[~odd], minlength=len(tokens))
    return tokens, even_count, np.bincount(place[odd], minlength=len(tokens))


def _moved(chances: NDArray[np.float64], by: int) -> NDArray[np.float64]:
    """Return the chances of counts that are higher by so many."""
    return np.concatenate([np.zeros(by), chances[: len(chances) - by]])


def _excess(matches: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return [K]: the squared excess of matches [n, K] in each window, added up over all of them.

    z² of a window is its squared excess over its variance, a quarter of its length.
    """
    right = matches.view(np.uint8)
    windows = len(right) - WINDOW + 1
    excess = np.full((windows, right.shape[1]), -WINDOW // 2, dtype=np.int8)
    for first in range(WINDOW):
        excess += right[first : first + windows].view(np.int8)
    total: NDArray[np.int32] = (excess * excess).sum(0, dtype=np.int32)
    return total


@lru_cache(maxsize=4)
def _random_coins(times: int) -> NDArray[np.bool_]:
    """Return [times * MOST_DISTINCT, RANDOM_KEYS]: how coins of tokens fall under random keys."""
    shape = (times * MOST_DISTINCT, RANDOM_KEYS)
    return np.random.default_rng(0).integers(0, 2, shape, dtype=np.bool_)
