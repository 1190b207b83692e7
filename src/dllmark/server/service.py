"""What the server has: keys, tokenizer, model, limits; and what it does with a text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dllmark.detection.any_key import key_detector
from dllmark.detection.detector import Detection, Scoring, Verdict
from dllmark.detection.family import FamilyDetector
from dllmark.detection.payload import PayloadDetector
from dllmark.detection.words import strength
from dllmark.errors import DllmarkError, InputError, KeyRingError, MismatchError
from dllmark.relation.key import WatermarkKey
from dllmark.relation.keyring import KeyRing
from dllmark.relation.payload import Payloads
from dllmark.relation.source import check_version
from dllmark.relation.tokenizer import Tokenizer
from dllmark.server.generation_queue import GenerateArguments, GenerationQueue
from dllmark.server.limits import Limits
from dllmark.server.metrics import Metrics
from dllmark.server.refusal import Refusal
from dllmark.server.streams import log

if TYPE_CHECKING:
    from dllmark.models.loading import Model
    from dllmark.server.upstream import Upstream

Result = TypeVar("Result")

MOST_SHOWN = 20
"""Keys that the server tells of: a ring may have thousands."""

MOST_DETECTORS = 8
"""Detectors that are kept: requests may choose other rates."""

COARSE = (1e-6, 1e-4, 1e-2, 1.0)
"""A public server says of a p-value only which of these it does not exceed."""

PUBLIC_PAIRS = 50
"""A public server calls a text with fewer pairs too short: a verdict on few tells their colours."""

PUBLIC_MISS = 150
"""And a miss on fewer. What the text needs in truth depends on the colours of its common pairs."""


PAYLOAD_WORK = 10_000 << 16
"""Characters times payloads that a request may have looked through: some ten seconds of a core."""


class FixedKeys:
    """Keys that stay as they are, of which the first marks.

    Key files with the same secret and γ are one key. With another γ a secret makes another mark,
    so that is a key of its own, though its id is the same.
    """

    def __init__(self, keys: Sequence[WatermarkKey]) -> None:
        self._keys = tuple({key.identity: key for key in keys}.values())

    def all_keys(self) -> tuple[WatermarkKey, ...]:
        """Return the keys."""
        return self._keys

    def current(self, label: str | None, fingerprint: str) -> WatermarkKey:
        """Return the key that marks."""
        return self._keys[0]

    def labels(self) -> dict[str, str]:
        """Return what derived keys are called, by id."""
        return {key.id: key.label for key in self._keys if key.label}

    def count(self, key: WatermarkKey, texts: int) -> None:
        """Count nothing: that is for rings."""


def check_tokenizers(keys: Iterable[WatermarkKey], tokenizer: Tokenizer) -> None:
    """Raise `MismatchError` where a key is for another tokenizer than the one that is served.

    >>> check_tokenizers([key], Detector(key).tokenizer)
    """
    for key in keys:
        check_version(key, tokenizer)
        if key.tokenizer.fingerprint != tokenizer.fingerprint:
            raise MismatchError(
                f"key {key.id} is for another tokenizer than {tokenizer.name}: a server works with "
                "one tokenizer, so start another one for that key, or make a key for this one with "
                "`dllmark keygen`"
            )


@dataclass
class Service:
    """The parts of a server: keys, or a ring of them; a tokenizer, the model's if there is one.

    The keys of a ring are looked at for every request, so that what changes there needs no restart;
    `label` chooses which of them may mark. All keys recognise. An `upstream` writes where there is
    no model here. `payloads` are those that a request may have looked for.
    """

    source: Sequence[WatermarkKey] | KeyRing
    tokenizer: Tokenizer
    model: Model | None = None
    limits: Limits = field(default_factory=Limits)
    fpr: float = 0.01
    public: bool = False
    label: str | None = None
    upstream: Upstream | None = None
    payloads: Payloads = field(default_factory=lambda: Payloads(16))

    def __post_init__(self) -> None:
        fixed = not isinstance(self.source, KeyRing)
        self._ring = self.source if isinstance(self.source, KeyRing) else FixedKeys(self.source)
        if not self.keys:
            raise InputError("give at least one key")
        check_tokenizers(self.keys if fixed else [], self.tokenizer)
        self._detectors: tuple[Sequence[WatermarkKey], dict[Any, FamilyDetector]] = ((), {})
        self._tokenizers = {self.tokenizer.fingerprint: self.tokenizer}
        self.detector(self.fpr)  # raises for a rate that is none
        if self.model:
            self.key  # noqa: B018 - raises where no key may mark
        self.metrics = Metrics()
        self.pool = ThreadPoolExecutor(os.cpu_count(), "detector")
        self.queue = (
            GenerationQueue(self.model, self.limits.waiting, self.metrics, self.count_texts)
            if self.model
            else None
        )
        if self.upstream:
            pending = self.upstream.pending
            self.metrics.pending.set_function(lambda: len(pending))

    @property
    def keys(self) -> tuple[WatermarkKey, ...]:
        """All keys as they are now; the same tuple while they do not change."""
        return self._ring.all_keys()

    @property
    def key(self) -> WatermarkKey:
        """The key that marks what is written from now on."""
        return self._ring.current(self.label, self.tokenizer.fingerprint)

    def count_texts(self, arguments: GenerateArguments) -> None:
        """Tell the ring that texts are marked; where it cannot be told, they are written still."""
        if arguments.watermark is None:
            return
        try:
            self._ring.count(arguments.key, len(arguments.prompts))
        except DllmarkError as error:
            log.error("texts that a key marks are not counted: %s", error)

    def shown_keys(self) -> list[WatermarkKey]:
        """Return the key that marks, and some others."""
        try:
            first = [self.key]
        except KeyRingError:
            first = []
        others = [key for key in self.keys[:MOST_SHOWN] if key not in first]
        return [*first, *others][:MOST_SHOWN]

    @property
    def model_name(self) -> str | None:
        """What clients call the model; of a folder its name only."""
        if self.model is None:
            return None
        return Path(self.model.name).name if Path(self.model.name).exists() else self.model.name

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do some work in a thread, so that the event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *arguments)

    def detector(
        self, fpr: float, scoring: Scoring = "unique", *, payload: bool = False
    ) -> FamilyDetector:
        """Return the detector of all keys, or of payloads; it is kept while keys do not change."""
        keys, made = self._detectors
        if keys is not self.keys or len(made) >= MOST_DETECTORS:
            keys, made = self._detectors = self.keys, {}
        chosen = fpr, scoring, payload
        if chosen not in made:
            known = list(self._tokenizers.values())
            found = key_detector(keys, known, fpr=fpr, scoring=scoring)
            self._tokenizers = found.tokenizers
            made[chosen] = self._payload_detector(keys, fpr) if payload else found
        return made[chosen]

    def _payload_detector(self, keys: Sequence[WatermarkKey], fpr: float) -> PayloadDetector:
        if len(keys) != 1:
            raise Refusal(
                400,
                "several_keys",
                "payloads are looked for under one key, and this server has several: ask one that "
                "has a single key",
                param="payload",
            )
        tokenizer = self._tokenizers[keys[0].tokenizer.fingerprint]
        return PayloadDetector(keys[0], self.payloads, tokenizer, fpr=fpr)

    def check_payload_work(self, texts: Sequence[str]) -> None:
        """Refuse to look for payloads in more text than a core gets through in seconds."""
        most = max(1000, PAYLOAD_WORK // len(self.payloads))
        if (asked := sum(map(len, texts))) > most:
            raise Refusal(
                413,
                "text_too_long",
                f"payloads are looked for in {most} characters of a request, and it has {asked}: "
                "send less, or use `dllmark detect --payload`",
            )

    def check(
        self,
        texts: Sequence[str],
        fpr: float | None = None,
        scoring: Scoring = "unique",
        *,
        payload: bool = False,
        explain: bool = False,
        spans: bool = False,
    ) -> list[dict[str, Any]]:
        """Return each text's verdict and evidence, corrected for the number of keys.

        A public server gives the verdict and the class of the p-value alone.
        """
        detector = self.detector(fpr or self.fpr, scoring, payload=payload)
        labels = self._ring.labels()
        results = []
        for text, detection in zip(texts, detector.detect_many(texts), strict=True):
            if self.public:
                results.append(coarse(detection))
                continue
            result = {**detection.to_dict(), "green_fraction": detection.green_fraction}
            if labels:
                marked = detection.verdict is Verdict.WATERMARKED
                result["label"] = labels.get(detection.key_id) if marked else None
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
    missed = detection.verdict is not Verdict.WATERMARKED
    if detection.pairs < (PUBLIC_MISS if missed else PUBLIC_PAIRS):
        short = Verdict.TOO_SHORT.value
        return {"verdict": short, "strength": None, "p_value_at_most": COARSE[-1]}
    verdict = Verdict.NOT_DETECTED if missed else Verdict.WATERMARKED
    at_most = min(bound for bound in COARSE if detection.p_value <= bound)
    return {
        "verdict": verdict.value,
        "strength": None if missed else strength(at_most),
        "p_value_at_most": at_most,
    }
