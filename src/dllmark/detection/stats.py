"""The statistics of a verdict: exact binomial tails, thresholds and intervals, with numpy alone.

The binomial tail is right to twelve digits for up to 100,000 pairs and to eleven for a million,
also where it is 1e-300: Loader's saddle-point form of the probability (2000) times a continued
fraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dllmark.errors import InputError

Floats = NDArray[np.float64]

RATES = (0.05, 0.01, 0.005, 0.001)
"""The false-positive rates reports are made for."""


def z_score(green: ArrayLike, pairs: ArrayLike, gamma: float) -> Floats:
    """Return the paper's z = (g - γn) / sqrt(γ(1-γ)n), and 0 where nothing was scored.

    >>> float(z_score(75, 100, 0.5))
    5.0
    """
    g, n = np.asarray(green, dtype=np.float64), np.asarray(pairs, dtype=np.float64)
    return (g - gamma * n) / np.sqrt(gamma * (1 - gamma) * np.maximum(n, 1))


def binomial_tail(green: ArrayLike, pairs: ArrayLike, gamma: ArrayLike) -> Floats:
    """Return P(X ≥ green) for X ~ Binomial(pairs, γ), the exact one-sided p-value.

    >>> float(binomial_tail(2, 2, 0.5))
    0.25
    """
    g, n, p = np.broadcast_arrays(
        *(np.asarray(one, dtype=np.float64) for one in (green, pairs, gamma))
    )
    tail = np.where(g > n, 0.0, 1.0)
    upper = (g > p * n) & (g > 0) & (g <= n)
    lower = (g > 0) & (g <= p * n)
    # Either tail is its first term times a continued fraction, which converges fast on its own
    # side of the mean; the other side is one minus it.
    tail[upper] = _tail_from(g[upper], n[upper], p[upper])
    tail[lower] = 1 - _tail_from(n[lower] - g[lower] + 1, n[lower], 1 - p[lower])
    return tail


def family_wise(p_value: ArrayLike, tried: int) -> Floats:
    """Return 1 - (1-p)^tried: the chance that the least of `tried` p-values is as small.

    Colours under different keys are independent, so this is exact (Šidák) where Bonferroni's
    product is only a bound.

    >>> float(family_wise(0.5, 2)), float(family_wise(1e-300, 3))
    (0.75, 3e-300)
    """
    p = np.asarray(p_value, dtype=np.float64)
    if tried == 1:
        return p
    with np.errstate(divide="ignore"):  # of p = 1
        corrected: Floats = -np.expm1(tried * np.log1p(-p))
    return corrected


def one_of_family(rate: float, tried: int) -> float:
    """Return the rate that each of `tried` tests may have for all together to have `rate`.

    >>> one_of_family(0.75, 2)
    0.5
    """
    return rate if tried == 1 else -math.expm1(math.log1p(-rate) / tried)


def _tail_from(g: Floats, n: Floats, p: Floats) -> Floats:
    """Return P(X ≥ g) for g above the mean: the regularised incomplete beta I_p(g, n - g + 1)."""
    a, b = g, n - g + 1
    c, d = np.ones_like(a), 1 / (1 - (a + b) * p / (a + 1))
    fraction = d.copy()
    moving = np.ones(a.shape, dtype=np.bool_)
    m = 0
    while np.any(moving):  # Lentz's method; a value that has settled is left as it is
        m += 1
        even = m * (b - m) * p / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * p / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1 / (1 + coefficient * d)
            c = 1 + coefficient / c
            fraction = np.where(moving, fraction * (c * d), fraction)
        moving &= np.abs(c * d - 1) > 1e-15
    return np.minimum(1.0, _binomial_probability(g, n, p) * (1 - p) * fraction)


def _binomial_probability(k: Floats, n: Floats, p: Floats) -> Floats:
    """Return P(X = k) by Loader's saddle-point expansion, which has no cancellation."""
    rest = n - k
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.exp(
            _stirling_error(n)
            - _stirling_error(k)
            - _stirling_error(rest)
            - _deviance(k, n * p)
            - _deviance(rest, n * (1 - p))
        ) * np.sqrt(n / (2 * np.pi * k * rest))
    all_green = np.exp(n * np.log(p))
    none_green = np.exp(n * np.log1p(-p))
    result: Floats = np.where(rest == 0, all_green, np.where(k == 0, none_green, inner))
    return result


_SMALL_STIRLING_ERRORS = np.array(
    [0.0] + [math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - 0.5 * math.log(2 * math.pi)
             for k in range(1, 16)]
)  # fmt: skip


def _stirling_error(n: Floats) -> Floats:
    """Return log n! minus Stirling's approximation of it."""
    large = np.maximum(n, 16)
    square = large * large
    series = 1 / 1188 / square
    for coefficient in (1 / 1680, 1 / 1260, 1 / 360, 1 / 12):
        series = (coefficient - series) / square
    small = _SMALL_STIRLING_ERRORS[np.minimum(n, 15).astype(np.int64)]
    return np.where(n <= 15, small, series * large)


def _deviance(x: Floats, mean: Floats) -> Floats:
    """Return x log(x / mean) + mean - x, by a series where x is close to the mean."""
    difference, total = x - mean, x + mean
    v = difference / total
    series = difference * v
    term = 2 * x * v
    for j in range(1, 15):
        term = term * v * v
        series = series + term / (2 * j + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = x * np.log(x / mean) + mean - x
    return np.where(np.abs(difference) < 0.25 * total, series, direct)


@dataclass(frozen=True)
class Interval:
    """A share with its exact 95 % interval (Clopper-Pearson)."""

    share: float
    low: float
    high: float


@lru_cache(maxsize=4096)  # tables have the same few shares over and over
def share_interval(hits: int, total: int, confidence: float = 0.95) -> Interval:
    """Return hits/total with its Clopper-Pearson interval.

    >>> share_interval(0, 100).high < 0.04
    True
    """
    if total < 1 or not 0 <= hits <= total:
        raise InputError(f"{hits} hits of {total} is not a share")
    half = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _solve(lambda p: float(binomial_tail(hits, total, p)) < half)
    high = (
        1.0
        if hits == total
        else _solve(lambda p: 1 - float(binomial_tail(hits + 1, total, p)) > half)
    )
    return Interval(hits / total, low, high)


def _solve(still_below: Callable[[float], bool]) -> float:
    """Return the point of (0, 1) where a predicate that starts true turns false, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if still_below(middle) else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Threshold:
    """A score that unwatermarked text exceeds at a given rate, with its 95 % interval.

    `low` and `high` are order statistics of the calibration scores; `high` is infinite where the
    sample is too small to bound the threshold from above.
    """

    fpr: float
    value: float
    low: float
    high: float
    samples: int


def threshold(scores: Sequence[float] | Floats, fpr: float) -> Threshold:
    """Return the smallest score above which at most `fpr` of the unwatermarked scores lie.

    A text is then called watermarked when its score is greater than the value.

    >>> threshold([float(score) for score in range(100)], 0.05).value
    94.0
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    n = len(ordered)
    if n == 0 or not np.all(np.isfinite(ordered)):
        raise InputError("a threshold needs at least one score, and only finite ones")
    if not 0 < fpr < 1:
        raise InputError(f"a false-positive rate lies in (0, 1); got {fpr}")
    allowed = math.floor(n * fpr + 1e-9)
    fewest, most = _above_threshold(n, fpr)
    return Threshold(
        fpr=fpr,
        value=float(ordered[n - allowed - 1]),
        low=float(ordered[max(n - most - 1, 0)]),
        high=float(ordered[n - fewest]) if fewest >= 1 else math.inf,
        samples=n,
    )


@lru_cache(maxsize=64)  # a report has the same few sizes and rates over and over
def _above_threshold(n: int, fpr: float) -> tuple[int, int]:
    """Return the fewest and the most of n null scores that lie above the true threshold.

    Their number is Binomial(n, fpr): its 2.5 % and 97.5 % points.
    """
    above = binomial_tail(np.arange(n + 2), n, fpr)
    fewest, most = np.searchsorted(-above, [-0.975, -0.025], side="right") - 1
    return int(fewest), int(most)
