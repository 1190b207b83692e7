"""What a mark costs: the texts of the same prompts with and without it, side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.detection.stats import threshold
from dllmark.experiments.batches import Batch
from dllmark.experiments.evaluation.inputs import Sample
from dllmark.experiments.evaluation.measures import Rate
from dllmark.experiments.p_values import Floats
from dllmark.experiments.settings import Setting
from dllmark.files import append_line, whole_lines, writing
from dllmark.quality.repetition import repeated_ngrams
from dllmark.relation.tokenizer import Ids, Tokenizer

DEGENERATE = 0.2
"""A text is degenerate if more than this share of its 4-grams stood in it before."""


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
    """Seconds of a step of the sampler, the median over batches of so many texts."""

    unmarked: float
    marked: float
    batch: int
    batches: int
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


class StepClock:
    """Keeps how long the steps of each batch took, in a file that a killed run leaves whole.

    The first step of a batch is left out: it may include what is done once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, batch: Batch, seconds: Sequence[float], hardware: str) -> None:
        """Append the median of the steps of one batch."""
        if len(seconds) < 2:
            return
        line = {
            "setting": batch.setting.slug, "batch": len(batch.prompts), "steps": len(seconds),
            "seconds": float(np.median(seconds[1:])), "hardware": hardware,
        }  # fmt: skip
        with writing(self._path):
            _, end = whole_lines(self._path)
            append_line(self._path, end, json.dumps(line).encode() + b"\n")

    def read(self, setting: Setting) -> StepTime | None:
        """Return the time of a step, of batches of the size that has most of them, if any has.

        Only batches of one size on one machine are compared.
        """
        lines, _ = whole_lines(self._path)
        groups: dict[tuple[int, str], dict[str, list[float]]] = {}
        for line in lines:
            one: dict[str, Any] = json.loads(line)
            group = groups.setdefault((one["batch"], one["hardware"]), {})
            group.setdefault(one["setting"], []).append(one["seconds"])
        both = {setting.slug, setting.unmarked.slug}
        complete = [(where, by) for where, by in groups.items() if both <= set(by)]
        if not complete:
            return None
        (batch, hardware), by = max(complete, key=lambda one: len(one[1][setting.slug]))
        clean, marked = by[setting.unmarked.slug], by[setting.slug]
        return StepTime(
            float(np.median(clean)), float(np.median(marked)), batch, min(len(clean), len(marked)),
            hardware,
        )  # fmt: skip
