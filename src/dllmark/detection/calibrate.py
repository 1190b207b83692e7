"""Check the false-positive rate on text that is known to carry no mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.detection.detector import Detection
from dllmark.detection.expected import Fairness
from dllmark.detection.stats import (
    RATES,
    Floats,
    Interval,
    Threshold,
    binomial_tail,
    share_interval,
    threshold,
)
from dllmark.errors import InputError, require
from dllmark.files import atomic_write, writing


@dataclass(frozen=True)
class Row:
    """One false-positive rate: how often unmarked texts were hit, and the z that gives the rate.

    `against_gamma` is how often they would be if every text were tested against γ, whatever the
    key makes of its common pairs.
    """

    fpr: float
    observed: Interval
    against_gamma: Interval
    threshold: Threshold


@dataclass(frozen=True)
class Calibration:
    """What a set of unmarked texts says about a detector."""

    key_id: str
    scoring: str
    texts: int
    mean_z: float
    sd_z: float
    rows: tuple[Row, ...]
    fairness: Fairness

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values; an unknown upper bound is null."""
        record = asdict(self)
        for row in record["rows"]:
            if not np.isfinite(row["threshold"]["high"]):
                row["threshold"]["high"] = None
        return record


def calibrate(detections: Sequence[Detection], fairness: Fairness) -> Calibration:
    """Summarise the detections of unmarked texts, beside how fair their key is to ordinary text.

    >>> from dllmark.detection.expected import key_fairness
    >>> detector = Detector(key)
    >>> fairness = key_fairness(detector.green, detector.tokenizer)
    >>> calibrate(list(detector.detect_many(["some text", "other text"])), fairness).texts
    2
    """
    if not detections:
        raise InputError("calibration needs at least one text")
    p_values = np.array([detection.p_value for detection in detections])
    z = np.array([detection.z for detection in detections])
    first = detections[0]
    green, pairs = np.array([(detection.green, detection.pairs) for detection in detections]).T
    at_gamma = binomial_tail(green, pairs, first.gamma)
    rows = tuple(
        Row(fpr, _share_hit(p_values, fpr), _share_hit(at_gamma, fpr), threshold(z, fpr))
        for fpr in RATES
    )
    return Calibration(
        first.key_id, first.scoring, len(z), float(z.mean()), float(z.std()), rows, fairness
    )


def _share_hit(p_values: Floats, fpr: float) -> Interval:
    return share_interval(int((p_values <= fpr).sum()), len(p_values))


def require_matplotlib() -> None:
    """Raise a clear error where plots cannot be drawn."""
    require("a plot", "eval", "matplotlib")


def plot_p_values(detections: Sequence[Detection], path: Path) -> None:
    """Write a PNG of observed against expected p-values; below the diagonal is safe."""
    require_matplotlib()
    from matplotlib.figure import Figure

    observed = np.sort([detection.p_value for detection in detections])
    count = len(observed)
    expected = np.arange(1, count + 1) / (count + 1)
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.loglog([1 / (count + 1), 1], [1 / (count + 1), 1], color="0.6", label="exactly as stated")
    axes.loglog(np.maximum(observed, 1e-12), expected, ".", markersize=3, label="these texts")
    axes.set_xlabel("p-value")
    axes.set_ylabel("share of unmarked texts with a p-value at most that")
    axes.set_title(f"{count} unmarked texts, {detections[0].scoring} pairs")
    axes.legend()
    with writing(path), atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=150)
