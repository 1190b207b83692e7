"""How likely a marked text of some length is to be found: without it, a miss says nothing.

Whether a marked text reaches a rate depends on how green the mark makes it. Unless it was measured,
the mark is taken to raise the log-odds of a green pair by one: with γ ½, 73 % of a marked text's
pairs are green. That is about what the default mark reaches (docs/how-detection-decides.md), and
too hopeful for weak settings or very predictable text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dllmark.detection.stats import Floats, binomial_tail
from dllmark.errors import InputError, MismatchError
from dllmark.files import read_input
from dllmark.relation.key import WatermarkKey

USUAL = 1.0
"""How much a mark is taken to raise the log-odds of a green pair, unless it was measured."""

POWER = 0.95
"""The power asked of a length: where fewer marked texts would be found, a miss is "too short"."""

MOST_POWER = 0.999
"""No more is said than this: texts differ, and a share of green pairs is known less well."""

MOST_PAIRS = 1 << 14
"""No text is called too short beyond this many pairs: a mark that weak lacks more than length."""

GRID = 0.005
"""Expected shares this close together are taken for one."""


def mark_strength(marked_share: float | None, gamma: float) -> float:
    """Return how much a mark raises the log-odds of a green pair, from the share it reaches.

    >>> mark_strength(None, 0.5), round(mark_strength(0.88, 0.5), 2)
    (1.0, 1.99)
    """
    if marked_share is None:
        return USUAL
    if not gamma < marked_share <= 1:
        raise InputError(
            f"the green share of marked texts lies above gamma, {gamma:g}, and is at most 1; "
            f"got {marked_share:g}"
        )
    return _log_odds(min(marked_share, 0.999)) - _log_odds(gamma)


def reported_share(path: str | Path, keys: Iterable[WatermarkKey]) -> float:
    """Return the share of green pairs that a report measured in marked texts.

    It must be a report on one of the keys, or on one that is alike: how green a mark makes a text
    depends on γ and the tokenizer, and not on the secret.
    """
    try:
        report = json.loads(read_input(str(path)))
        share, settings = float(report["detection"]["green_share"]), report["settings"]
        gamma, tokenizer = float(settings["γ"]), str(settings["tokenizer"])
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} is no report.json of `dllmark report`, or one by another version"
        ) from None
    alike = (key for key in keys if key.gamma == gamma and key.tokenizer.fingerprint in tokenizer)
    if not any(alike):
        raise MismatchError(
            f"{path} is about gamma {gamma:g} and the tokenizer {tokenizer}, unlike the key: make "
            "a report with this key"
        )
    if not share > gamma:  # nor where it is no number
        raise InputError(
            f"{path} found no mark: {share:.1%} of the pairs in its marked texts are green, and "
            f"chance gives {gamma:.1%}"
        )
    return share


def marked_shares(expected: ArrayLike, strength: float) -> Floats:
    """Return the share of green pairs in marked texts that would have `expected` without the mark.

    >>> round(float(marked_shares(0.5, 1.0)), 3)
    0.731
    """
    share = np.asarray(expected, dtype=np.float64)
    raised: Floats = share * math.exp(strength)
    return raised / (raised + 1 - share)


def powers(pairs: ArrayLike, expected: ArrayLike, fpr: float, strength: float) -> Floats:
    """Return the chance that a marked text with so many pairs has a p-value of at most `fpr`.

    >>> powers([6, 32, 200], 0.5, 0.01, 1.0).round(2).tolist()
    [0.0, 0.5, 1.0]
    """
    pairs, shares = np.broadcast_arrays(np.asarray(pairs, dtype=np.int64), _on_grid(expected))
    found = np.empty(pairs.shape)
    for share in np.unique(shares).tolist():
        table, own = _power_by_pairs(share, fpr, strength), shares == share
        found[own] = table[np.minimum(pairs[own], len(table) - 1)]
    return found


def pairs_needed(expected: ArrayLike, fpr: float, strength: float) -> NDArray[np.int64]:
    """Return how many pairs a text needs for the power asked: the first number that reaches it.

    >>> pairs_needed([0.5, 0.55], 0.01, 1.0).tolist()
    [71, 75]
    """
    grid, place = np.unique(_on_grid(expected), return_inverse=True)
    tables = (_power_by_pairs(share, fpr, strength) for share in grid.tolist())
    needed = [int(np.argmax(table >= POWER)) or MOST_PAIRS for table in tables]
    return np.array(needed, dtype=np.int64)[place]


@lru_cache(maxsize=256)
def _power_by_pairs(expected: float, fpr: float, strength: float) -> Floats:
    """Return the power of 0, 1, 2, ... pairs, until it is as large as is said."""
    share = float(marked_shares(expected, strength))
    power, end = np.zeros(1), 128
    while power[-1] < MOST_POWER and len(power) <= MOST_PAIRS:
        pairs = np.arange(len(power), end)
        more = binomial_tail(_green_needed(pairs, expected, fpr), pairs, share)
        power, end = np.concatenate([power, np.minimum(more, MOST_POWER)]), 2 * end
    return power


def _on_grid(expected: ArrayLike) -> Floats:
    shares: Floats = np.round(np.asarray(expected, dtype=np.float64) / GRID) * GRID
    return shares


def _green_needed(pairs: NDArray[np.int64], expected: float, fpr: float) -> NDArray[np.int64]:
    """Return the fewest green pairs whose p-value is at most `fpr`, by bisection.

    It is one more than there are pairs where even all of them are not enough.
    """
    low, high = np.zeros_like(pairs), pairs + 1  # too few, and enough: no count is as large
    while np.any(high - low > 1):
        middle = (low + high) // 2
        enough = binomial_tail(middle, pairs, expected) <= fpr
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))
