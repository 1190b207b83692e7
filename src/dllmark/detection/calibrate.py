"""Check the false-positive rate on text that is known to carry no mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.detection.detector import Detection
from dllmark.detection.stats import RATES, Interval, Threshold, share_interval, threshold
from dllmark.errors import InputError, require
from dllmark.files import atomic_write, writing


@dataclass(frozen=True)
class Row:
    """One false-positive rate: how often unmarked texts were hit, and the z that gives the rate."""

    fpr: float
    observed: Interval
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values; an unknown upper bound is null."""
        record = asdict(self)
        for row in record["rows"]:
            if not np.isfinite(row["threshold"]["high"]):
                row["threshold"]["high"] = None
        return record


def calibrate(detections: Sequence[Detection]) -> Calibration:
    """Summarise the detections of unmarked texts.

    >>> result = calibrate(list(Detector(key).detect_many(["some text", "other text"])))
    >>> result.texts
    2
    """
    if not detections:
        raise InputError("calibration needs at least one text")
    p_values = np.array([detection.p_value for detection in detections])
    z = np.array([detection.z for detection in detections])
    rows = tuple(
        Row(fpr, share_interval(int((p_values <= fpr).sum()), len(z)), threshold(z, fpr))
        for fpr in RATES
    )
    first = detections[0]
    return Calibration(first.key_id, first.scoring, len(z), float(z.mean()), float(z.std()), rows)


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
