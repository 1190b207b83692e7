"""How green a text is expected to be under one key, if that key did not mark it.

Over all keys the answer is γ. A user has one key, though, and texts share their common pairs: where
"of the" happens to be green it is green in every text, and a key with many such accidents would
accuse too often. Which of the common pairs are green is known from the key, and how often they
follow a left token is known from a list of word pairs that ships with the package. So each left
token of a text has an expected share of green pairs, and the text has their mean.

A text is tested against that mean only where it is above γ: no p-value gets smaller by it, so what
holds for every text over all keys still holds.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.stats import binomial_tail
from dllmark.relation.greenlist import GreenList
from dllmark.relation.tokenizer import Ids, Tokenizer

Floats = NDArray[np.float64]

LIST = Path(__file__).parent / "common_pairs.json"
"""Made by `training/common_pairs.py`: in how many of 1,000 passages a pair of words is."""

UNSEEN = 20
"""Passages of no known successor added to each left token, so that a rare one says little."""


@dataclass(frozen=True)
class CommonPairs:
    """The common pairs of a tokenizer.

    `place[id]` is a token's number among the left tokens of the list, and 0 elsewhere; `weight` is
    the probability that a pair's left token is followed by its right one, and `typical[place]` the
    share of a text's pairs that have a left token.
    """

    place: NDArray[np.int64]
    left: Ids
    right: Ids
    weight: Floats
    typical: Floats

    def excess(self, green: GreenList) -> Floats:
        """Return by how much a pair is likelier green than γ, for each `place` of its left token.

        >>> detector = Detector(key)
        >>> excess = common_pairs(detector.tokenizer).excess(detector.green)
        >>> float(excess[0]), bool(abs(excess).max() < 0.5)
        (0.0, True)
        """
        above = self.weight * (green.pairs(self.left, self.right) - green.identity.gamma)
        total = np.bincount(self.place[self.left], above, minlength=len(self.typical))
        return total.astype(np.float64)


@lru_cache(maxsize=16)
def common_pairs(tokenizer: Tokenizer, path: Path = LIST) -> CommonPairs:
    """Return the common pairs of words as pairs of a tokenizer's ids.

    A pair of words is a pair of tokens where the one ends and the other begins, and the tokens
    within a word, or within a mark with its line end, are pairs too.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    units = dict(zip(record["lefts"], tokenizer.encode_many(list(record["lefts"])), strict=True))
    seen: Counter[int] = Counter()
    counts: Counter[tuple[int, int]] = Counter()
    for unit, times in record["lefts"].items():
        ids = units[unit].tolist()
        for token in ids:
            seen[token] += times
        counts.update(dict.fromkeys(pairwise(ids), times))
    pairs = [(left, right) for left, rights in record["common"].items() for right in rights]
    for (left, right), ids in zip(
        pairs, tokenizer.encode_many([left + right for left, right in pairs]), strict=True
    ):
        end = len(units[left])
        if 0 < end < len(ids) and np.array_equal(ids[:end], units[left]):
            counts[int(ids[end - 1]), int(ids[end])] += record["common"][left][right]
    lefts = sorted({left for left, _ in counts})
    place = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    place[lefts] = np.arange(1, len(lefts) + 1)
    known = np.array(list(counts), dtype=np.int64).reshape(-1, 2)
    weight = [count / (seen[left] + UNSEEN) for (left, _), count in counts.items()]
    typical = [0.0] + [seen[left] / record["pairs"] for left in lefts]
    return CommonPairs(place, known[:, 0], known[:, 1], np.array(weight), np.array(typical))


def expected_shares(
    green: GreenList, tokenizer: Tokenizer, ids: Ids, lengths: NDArray[np.int64]
) -> Floats:
    """Return for each text the share of green pairs that an unmarked one would have, at least γ.

    The texts stand one behind the other in `ids`.

    >>> detector = Detector(key)
    >>> ids = detector.tokenizer.encode("One of the texts that nobody marked.")
    >>> shares = expected_shares(detector.green, detector.tokenizer, ids, np.array([len(ids)]))
    >>> bool(0.5 <= shares[0] < 0.7)
    True
    """
    text = np.repeat(np.arange(len(lengths)), lengths)
    left, right = ids[:-1], ids[1:]
    usable = tokenizer.scored[left] & tokenizer.scored[right] & (text[:-1] == text[1:])
    left, text = left[usable], text[1:][usable]
    common = common_pairs(tokenizer)
    above = common.excess(green)[common.place[left]]
    total = np.bincount(text, above, minlength=len(lengths))
    mean = total / np.maximum(np.bincount(text, minlength=len(lengths)), 1)
    return green.identity.gamma + np.maximum(mean, 0.0)


@dataclass(frozen=True)
class Fairness:
    """What a key makes of ordinary text that carries no mark, by the list of common pairs.

    `share` of its pairs are green, where random keys have γ ± `spread`. Of texts of 200 pairs,
    `against_gamma` would be taken for marked at 1 % if γ were what they are tested against, and
    `against_share` are, since they are tested against that share where it is above γ.
    """

    share: float
    spread: float
    against_gamma: float
    against_share: float


def key_fairness(green: GreenList, tokenizer: Tokenizer) -> Fairness:
    """Return how lucky or unlucky a key is with ordinary text.

    >>> detector = Detector(key)
    >>> fairness = key_fairness(detector.green, detector.tokenizer)
    >>> bool(0.45 < fairness.share < 0.55), bool(fairness.against_share <= 0.01)
    (True, True)
    """
    common, gamma = common_pairs(tokenizer), green.identity.gamma
    share = gamma + float(common.excess(green) @ common.typical)
    parts = common.weight * common.typical[common.place[common.left]]
    spread = math.sqrt(gamma * (1 - gamma) * float(parts @ parts))
    return Fairness(share, spread, _rate(share, gamma), _rate(share, max(gamma, share)))


def _rate(share: float, tested: float, pairs: int = 200, fpr: float = 0.01) -> float:
    """Return how often a text whose pairs are green at one share is hit when tested at another."""
    tails = binomial_tail(np.arange(pairs + 2), pairs, tested)
    needed = int(np.argmax(tails <= fpr))
    return float(binomial_tail(needed, pairs, share))
