"""What detectors of many keys share: one tokenisation, many texts, and one family-wise p-value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.detector import (
    Detection,
    Detector,
    Span,
    TextOrIds,
    TokenMark,
    batches,
    check_several,
    joined,
    scored_text,
    text_ids,
)
from dllmark.detection.stats import family_wise, one_of_family
from dllmark.relation.tokenizer import Ids, Tokenizer

Encoded = Mapping[str, tuple[Ids, NDArray[np.int64]]]
"""Texts by the fingerprint of each tokenizer: ids one text behind the other, and their numbers."""

MOST_SCORES = 1 << 18
"""Texts times keys scored at a time, so that memory stays small."""


@dataclass(frozen=True)
class Scores:
    """What some texts show, arrays with a value a text: by the key that fits best.

    `p_value` is corrected for every key that was tried; `key` is the best one's number. `payload`
    is None where none was looked for, or where it is not clear.
    """

    verdict: NDArray[np.object_]
    z: NDArray[np.float64]
    p_value: NDArray[np.float64]
    pairs: NDArray[np.int64]
    green: NDArray[np.int64]
    expected: NDArray[np.float64]
    key: NDArray[np.int64]
    key_id: NDArray[np.object_]
    payload: NDArray[np.object_]


class FamilyDetector(ABC):
    """Detects the watermark of any key of a family, each corrected for having tried them all."""

    tokenizers: dict[str, Tokenizer]
    """Those of the keys, by fingerprint: each text is encoded once by each."""

    def detect(self, text: TextOrIds, prompt: TextOrIds | None = None) -> Detection:
        """Score one text, or the token ids of one; the prompt is not scored."""
        encoded = {
            name: joined([text_ids(tokenizer, text, prompt)])
            for name, tokenizer in self.tokenizers.items()
        }
        return self._detections(self.score(encoded))[0]

    def detect_many(self, texts: Iterable[str]) -> Iterator[Detection]:
        """Score a stream of texts in order, in memory that does not grow with it."""
        check_several(texts)
        return self._detect_batches(texts)

    def _detect_batches(self, texts: Iterable[str]) -> Iterator[Detection]:
        for batch in batches(map(scored_text, texts)):
            encoded = {
                name: joined(tokenizer.encode_many(batch))
                for name, tokenizer in self.tokenizers.items()
            }
            for part in self._parts(encoded):
                yield from self._detections(self._score(part))

    def score(self, encoded: Encoded) -> Scores:
        """Score texts that are encoded by each of the tokenizers."""
        parts = [self._score(part) for part in self._parts(encoded)]
        columns = ([getattr(part, field.name) for part in parts] for field in fields(Scores))
        return Scores(*map(np.concatenate, columns))

    def explain(self, text: str, detection: Detection) -> list[TokenMark]:
        """Return every token of a text with its colour under the key a detection names."""
        return self._named_by(detection).explain(text)

    def spans(self, text: str, detection: Detection) -> list[Span]:
        """Return the stretches that carry the mark of the key a detection names.

        Their p-values are corrected for the number of keys too.
        """
        tried = len(self)
        spans = self._named_by(detection).spans(text, fpr=one_of_family(detection.fpr, tried))
        return [replace(span, p_value=float(family_wise(span.p_value, tried))) for span in spans]

    def _parts(self, encoded: Encoded) -> Iterator[Encoded]:
        """Cut texts into parts that need little memory; no texts are one part."""
        some = max(1, MOST_SCORES // len(self))
        for start in range(0, max(1, text_count(encoded)), some):
            part = {}
            for name, (ids, lengths) in encoded.items():
                first = int(lengths[:start].sum())
                own = lengths[start : start + some]
                part[name] = ids[first : first + int(own.sum())], own
            yield part

    @abstractmethod
    def __len__(self) -> int:
        """Return how many keys are tried."""

    @abstractmethod
    def check_claim(self, claimed: dict[str, Any]) -> None:
        """Raise `MismatchError` where a text's stored identity is none of these keys'."""

    @abstractmethod
    def _score(self, encoded: Encoded) -> Scores:
        """Score a part of the texts."""

    @abstractmethod
    def _detections(self, scores: Scores) -> list[Detection]:
        """Return each text's detection."""

    @abstractmethod
    def _named_by(self, detection: Detection) -> Detector:
        """Return the detector of the key that a detection names."""


def text_count(encoded: Encoded) -> int:
    """Return how many texts there are."""
    return len(next(iter(encoded.values()))[1])
