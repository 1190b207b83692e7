"""Find marked stretches inside a longer text, with p-values that account for looking everywhere.

A stretch is scored by how much likelier it is under a mark of some strength than under none: the
sum of log-likelihood ratios of its pairs. For a stretch that starts at one given pair, that
likelihood ratio is a martingale of mean 1 under no mark, so by Ville's inequality the chance that
it ever reaches e^s is at most e^-s. Summed over the n possible starts and the strengths tried, the
chance that *any* stretch scores s is at most n · strengths · e^-s: that bound is the p-value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STRENGTHS = (0.5, 1.0, 2.0)
"""How much the mark raises the log-odds of a green pair: weak, usual, strong."""


@dataclass(frozen=True)
class Segment:
    """Pairs start to end (not included) of the sequence that was searched."""

    start: int
    end: int
    green: int
    p_value: float


def best_segments(green: NDArray[np.bool_], gamma: float, level: float) -> list[Segment]:
    """Return the disjoint segments of a colour sequence whose p-value is at most `level`."""
    total = len(green)
    segments: list[Segment] = []
    to_search = [(0, total)]
    while to_search:
        low, high = to_search.pop()
        candidates = (_best(green, low, high, gamma, strength) for strength in STRENGTHS)
        score, start, end = max(candidates)
        p_value = max(total, 1) * len(STRENGTHS) * math.exp(-score)
        if p_value <= level:
            segments.append(Segment(start, end, int(green[start:end].sum()), p_value))
            to_search += [(low, start), (end, high)]
    return sorted(segments, key=lambda segment: segment.start)


def _best(
    green: NDArray[np.bool_], low: int, high: int, gamma: float, strength: float
) -> tuple[float, int, int]:
    """Return the highest log-likelihood ratio of a stretch in green[low:high], and the stretch."""
    if low == high:
        return 0.0, low, low
    scale = 1 - gamma + gamma * math.exp(strength)
    ratio = np.where(green[low:high], strength - math.log(scale), -math.log(scale))
    sums = np.concatenate([[0.0], np.cumsum(ratio)])
    gains = sums - np.minimum.accumulate(sums)
    end = int(np.argmax(gains))
    start = int(np.argmin(sums[: end + 1]))
    return float(gains[end]), low + start, low + end
