"""What the server has: keys, tokenizer, model, limits; and what it does with a text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dllmark.detection.detector import (
    Detection,
    Detector,
    Scoring,
    Verdict,
    detect_any,
    scored_text,
)
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
        options: dict[str, Any] = {"fpr": fpr or self.fpr, "scoring": scoring}
        results = []
        for text, detection in zip(texts, self._detections(texts, options), strict=True):
            if self.public:
                results.append(coarse(detection))
                continue
            result = {**detection.to_dict(), "green_fraction": detection.green_fraction}
            key = self._key_of(detection)
            if explain:
                detector = Detector(key, self.tokenizer, **options)
                result["tokens"] = [asdict(token) for token in detector.explain(text)]
            if spans:
                result["spans"] = self._spans(key, text, options["fpr"])
            results.append(result)
        return results

    def _key_of(self, detection: Detection) -> WatermarkKey:
        """Return the key a detection names."""
        named = (detection.key_id, detection.gamma)
        return next(key for key in self.keys if (key.id, key.gamma) == named)

    def _detections(self, texts: Sequence[str], options: dict[str, Any]) -> Iterator[Detection]:
        """Yield each text's detection; with one key, all are scored together, which is faster."""
        if len(self.keys) == 1:
            yield from Detector(self.key, self.tokenizer, **options).detect_many(texts)
            return
        for ids in self.tokenizer.encode_many([scored_text(text) for text in texts]):
            yield detect_any(self.keys, ids, tokenizer=self.tokenizer, **options)

    def _spans(self, key: WatermarkKey, text: str, fpr: float) -> list[dict[str, Any]]:
        """Return the stretches that one of the keys marked, corrected for having tried all."""
        tried = len(self.keys)
        detector = Detector(key, self.tokenizer, fpr=fpr / tried)
        spans = [asdict(span) for span in detector.spans(text)]
        return [{**span, "p_value": span["p_value"] * tried} for span in spans]

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
