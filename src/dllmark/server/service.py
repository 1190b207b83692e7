"""What the server has: keys, tokenizer, model, limits; and what it does with a text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dllmark.detection.any_key import AnyKeyDetector
from dllmark.detection.detector import Detection, Detector, Scoring, Verdict
from dllmark.errors import InputError, MismatchError
from dllmark.relation.key import Identity, WatermarkKey
from dllmark.relation.tokenizer import Tokenizer
from dllmark.server.generation_queue import GenerationQueue
from dllmark.server.limits import Limits
from dllmark.server.metrics import Metrics
from dllmark.server.refusal import Refusal

if TYPE_CHECKING:
    from dllmark.models.loading import Model

Result = TypeVar("Result")

COARSE = (1e-6, 1e-4, 1e-2, 1.0)
"""A public server says of a p-value only which of these it does not exceed."""

PUBLIC_PAIRS = 50
"""A public server calls a text with fewer pairs too short: a verdict on few tells their colours."""


@dataclass
class Service:
    """The parts of a server. All keys are for one tokenizer, the model's where there is one.

    Key files with the same secret and γ are one key. With another γ a secret makes another mark,
    so that is a key of its own, though its id is the same.
    """

    keys: Sequence[WatermarkKey]
    tokenizer: Tokenizer
    model: Model | None = None
    limits: Limits = field(default_factory=Limits)
    fpr: float = 0.01
    public: bool = False

    def __post_init__(self) -> None:
        if not self.keys:
            raise InputError("give at least one key")
        by_identity: dict[Identity, WatermarkKey] = {}
        for key in self.keys:
            by_identity.setdefault(key.identity, key)
        self.keys = list(by_identity.values())
        for key in self.keys:
            if key.tokenizer.fingerprint != self.tokenizer.fingerprint:
                raise MismatchError(
                    f"key {key.id} is for another tokenizer than {self.tokenizer.name}: a server "
                    "works with one tokenizer, so start another one for that key, or make a key "
                    "for this one with `dllmark keygen`"
                )
        Detector(self.keys[0], self.tokenizer, fpr=self.fpr)  # raises for a rate that is none
        self.metrics = Metrics()
        self.pool = ThreadPoolExecutor(os.cpu_count(), "detector")
        self.queue = (
            GenerationQueue(self.model, self.limits.waiting, self.metrics) if self.model else None
        )

    @property
    def key(self) -> WatermarkKey:
        """The key that marks what is written."""
        return self.keys[0]

    @property
    def model_name(self) -> str | None:
        """What clients call the model; of a folder its name only."""
        if self.model is None:
            return None
        return Path(self.model.name).name if Path(self.model.name).exists() else self.model.name

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do some work in a thread, so that the event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *arguments)

    def check(
        self,
        texts: Sequence[str],
        fpr: float | None = None,
        scoring: Scoring = "unique",
        *,
        explain: bool = False,
        spans: bool = False,
    ) -> list[dict[str, Any]]:
        """Return each text's verdict and evidence, corrected for the number of keys.

        A public server gives the verdict and the class of the p-value alone.
        """
        detector = AnyKeyDetector(
            [
                Detector(key, self.tokenizer, fpr=fpr or self.fpr, scoring=scoring)
                for key in self.keys
            ]
        )
        results = []
        for text, detection in zip(texts, detector.detect_many(texts), strict=True):
            if self.public:
                results.append(coarse(detection))
                continue
            result = {**detection.to_dict(), "green_fraction": detection.green_fraction}
            if explain:
                tokens = detector.explain(text, detection)
                result["tokens"] = [asdict(token) for token in tokens]
            if spans:
                result["spans"] = [asdict(span) for span in detector.spans(text, detection)]
            results.append(result)
        return results

    def count(self, results: Sequence[dict[str, Any]]) -> None:
        """Add verdicts to the metrics; called on the event loop."""
        for result in results:
            self.metrics.detections.labels(result["verdict"]).inc()

    def refuse_if_public(self, **chosen: Any) -> None:
        """Refuse options that would tell a stranger more than a verdict."""
        for name, value in chosen.items():
            if self.public and value:
                raise Refusal(
                    400,
                    "not_public",
                    f"this server is public and decides {name} itself: leave it out",
                    param=name,
                )

    def close(self) -> None:
        """End the threads."""
        if self.queue:
            self.queue.close()
        self.pool.shutdown()


def coarse(detection: Detection) -> dict[str, Any]:
    """Return what a public server says of a detection."""
    if detection.pairs < PUBLIC_PAIRS:
        return {"verdict": Verdict.TOO_SHORT.value, "p_value_at_most": COARSE[-1]}
    at_most = min(bound for bound in COARSE if detection.p_value <= bound)
    return {"verdict": detection.verdict.value, "p_value_at_most": at_most}
