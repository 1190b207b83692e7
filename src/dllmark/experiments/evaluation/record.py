"""All that a report holds, as one value: the page shows it, and the JSON is it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dllmark.experiments.evaluation.attacks import Withstood
from dllmark.experiments.evaluation.cost import Cost
from dllmark.experiments.evaluation.inputs import InputFile
from dllmark.experiments.evaluation.measures import Detections, FalsePositives
from dllmark.experiments.evaluation.words import Verdict

FORMAT = "dllmark-report-1"


@dataclass(frozen=True)
class Evaluation:
    """What was measured of a mark, and on what.

    `settings` and `made` are for people: what the texts were written with; versions, hardware,
    dates, command.
    """

    verdict: Verdict
    rate: float
    false_positives: FalsePositives
    detection: Detections
    cost: Cost
    robustness: tuple[Withstood, ...]
    not_tested: tuple[str, ...]
    settings: dict[str, Any]
    inputs: tuple[InputFile, ...]
    made: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"format": FORMAT, **asdict(self)}
