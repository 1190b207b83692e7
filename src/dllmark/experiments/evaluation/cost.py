"""What a mark costs: the texts of the same prompts with and without it, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dllmark.detection.stats import threshold
from dllmark.experiments.evaluation.inputs import Sample
from dllmark.experiments.evaluation.measures import Rate
from dllmark.experiments.p_values import Floats
from dllmark.quality.repetition import DEGENERATE, repeated_ngrams
from dllmark.relation.tokenizer import Ids, Tokenizer


@dataclass(frozen=True)
class Compared:
    """A measure of paired texts: medians, and the median of marked over unmarked, or minus it.

    `low` and `high` are the ends of its 95 % interval, by order statistics; None where there are
    too few pairs for one.
    """

    pairs: int
    unmarked: float
    marked: float
    change: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class StepTime:
    """Seconds that a step took, for a batch of at most so many texts."""

    unmarked: float
    marked: float
    batch: int
    hardware: str


@dataclass(frozen=True)
class Cost:
    """What the mark costs. `why_not` says why something is None.

    `perplexity` is a ratio, the repetitions are differences.
    """

    pairs: int
    judge: str | None
    perplexity: Compared | None
    repeated_2: Compared | None
    repeated_4: Compared | None
    degenerate_unmarked: Rate | None
    degenerate_marked: Rate | None
    step: StepTime | None
    why_not: tuple[str, ...]


def compared(unmarked: Floats, marked: Floats, *, ratio: bool) -> Compared | None:
    """Return the medians of two measures of paired texts, and of how the one differs.

    A pair that lacks one of them (not a number) is left out; of no pairs there is nothing to say.

    >>> compared(np.array([1.0, 2.0]), np.array([2.0, 6.0]), ratio=True).change
    2.5
    """
    both = np.isfinite(unmarked) & np.isfinite(marked)
    before, after = unmarked[both], marked[both]
    if not len(before):
        return None
    change = after / before if ratio else after - before
    interval = threshold(change, 0.5)
    bounded = math.isfinite(interval.high)
    return Compared(
        len(change), float(np.median(before)), float(np.median(after)), float(np.median(change)),
        interval.low if bounded else None, interval.high if bounded else None,
    )  # fmt: skip


def repetition(
    tokenizer: Tokenizer, pairs: Sequence[tuple[Sample, Sample]]
) -> tuple[Compared | None, Compared | None, Rate | None, Rate | None]:
    """Return how bigrams and 4-grams repeat, and how many texts are degenerate: clean, marked."""
    if not pairs:
        return None, None, None, None
    clean, marked = (tokenizer.encode_many([pair[side].text for pair in pairs]) for side in (0, 1))
    two, four = ((_repeats(clean, n), _repeats(marked, n)) for n in (2, 4))
    before, after = (Rate.of(int((side > DEGENERATE).sum()), len(side)) for side in four)
    return compared(*two, ratio=False), compared(*four, ratio=False), before, after


def _repeats(texts: Sequence[Ids], n: int) -> Floats:
    return np.array([repeated_ngrams(ids, n) for ids in texts])
