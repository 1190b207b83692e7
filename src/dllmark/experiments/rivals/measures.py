"""What is measured of the texts that several keys marked, beside the unmarked ones.

Every quantity is a table [keys, prompts]. Its interval is over both: another run would have other
keys and other prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.stats import share_interval
from dllmark.experiments.batches import TextRecord
from dllmark.experiments.lab import Lab
from dllmark.experiments.report import Row
from dllmark.experiments.rivals.scores import Scorer
from dllmark.experiments.settings import Dataset, Setting
from dllmark.quality.repetition import (
    DEGENERATE,
    distinct_ngrams,
    doubled_words,
    repeated_ngrams,
)

Floats = NDArray[np.float64]

RESAMPLES = 1000


@dataclass(frozen=True)
class Quality:
    """How good the texts of some settings are, which differ in their key: [keys, prompts] each.

    perplexity  by judge
    off_topic   by judge: the same after the next question; nothing where prompts are no questions
    repeats     the share of 4-grams that stood in a text before
    doubled     the share of words that are followed by themselves
    tokens      how long it is
    distinct    the share of distinct bigrams over all texts of a key, the mean over keys
    """

    perplexity: dict[str, Floats]
    off_topic: dict[str, Floats]
    repeats: Floats
    doubled: Floats
    tokens: Floats
    distinct: float

    @property
    def degenerate(self) -> NDArray[np.bool_]:
        """Which texts loop."""
        return self.repeats > DEGENERATE


def quality(lab: Lab, dataset: Dataset, settings: list[Setting]) -> Quality:
    """Measure the texts of some settings."""
    written = [lab.texts(dataset, setting) for setting in settings]
    numbers = list(range(len(dataset.prompts)))

    def judged(judge: str, next_prompt: bool) -> Floats:
        return np.array([lab.perplexity(dataset, setting, numbers, judge, next_prompt=next_prompt)
                         for setting in settings])  # fmt: skip

    asked = lab.judges if dataset.chat and len(numbers) > 1 else []
    return Quality(
        {judge: judged(judge, False) for judge in lab.judges},
        {judge: judged(judge, True) for judge in asked},
        np.array([[repeated_ngrams(text["ids"], 4) for text in texts] for texts in written]),
        np.array([[doubled_words(text["text"]) for text in texts] for texts in written]),
        np.array([[len(text["ids"]) for text in texts] for texts in written], dtype=np.float64),
        float(np.mean([distinct_ngrams([text["ids"] for text in texts]) for texts in written])),
    )


@dataclass(frozen=True)
class Detected:
    """What the keys find in texts: [keys, prompts] each."""

    z: Floats
    count: Floats
    p_value: Floats


def detected(
    scorers: list[Scorer], written: list[list[TextRecord]], length: int | None = None
) -> Detected:
    """Score the first tokens of the texts of each key with its own scorer."""
    found = [
        scorer([np.asarray(text["ids"][:length], dtype=np.int64) for text in texts])
        for scorer, texts in zip(scorers, written, strict=True)
    ]
    z, count, p_value = (
        np.array([[getattr(one, name) for one in texts] for texts in found], dtype=np.float64)
        for name in ("z", "count", "p_value")
    )
    return Detected(z, count, p_value)


def rate_cells(name: str, hits: Floats) -> Row:
    """Return the share of hits [keys, prompts] in per cent, and its interval over both.

    What is not a number is left out. Where all or none are hits, resampling finds no spread: the
    interval is never narrower than the exact one for as many independent texts.
    """
    known = np.isfinite(hits)
    if not known.any():
        return {}
    exact = share_interval(int(hits[known].sum()), int(known.sum()))
    low, high = interval(hits)
    return {
        name: 100 * exact.share,
        f"{name}, low": 100 * min(low, exact.low),
        f"{name}, high": 100 * max(high, exact.high),
    }


def change_cells(name: str, marked: Floats, unmarked: Floats) -> Row:
    """Return by how many per cent marked texts' perplexity is above their unmarked partners'.

    It is the geometric mean of the ratios of all pairs, and its interval over keys and prompts.
    """
    ratios = np.log(marked) - np.log(unmarked)
    if not np.isfinite(ratios).any():
        return {}
    low, high = interval(ratios)
    return {
        name: 100 * float(np.expm1(np.nanmean(ratios))),
        f"{name}, low": 100 * float(np.expm1(low)),
        f"{name}, high": 100 * float(np.expm1(high)),
    }


def interval(values: Floats) -> tuple[float, float]:
    """Return the 95 % interval of the mean of values [keys, prompts], resampling keys and prompts.

    What is not a number is left out. The same values always have the same interval.

    >>> low, high = interval(np.array([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    >>> low < 2 / 3 < high
    True
    """
    rng = np.random.default_rng(0)
    keys, prompts = values.shape
    of_keys = rng.multinomial(keys, np.full(keys, 1 / keys), RESAMPLES).astype(np.float64)
    of_prompts = rng.multinomial(prompts, np.full(prompts, 1 / prompts), RESAMPLES)
    known = np.isfinite(values)
    total = ((of_keys @ np.where(known, values, 0.0)) * of_prompts).sum(1)
    count = ((of_keys @ known) * of_prompts).sum(1)
    means = total[count > 0] / count[count > 0]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
