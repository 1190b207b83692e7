"""Detection with several keys: the one that fits best, corrected for having tried them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dllmark.detection.detector import (
    Detection,
    Detector,
    Scoring,
    Span,
    TextOrIds,
    TokenMark,
    batches,
    check_several,
    scored_text,
    verdict_for,
)
from dllmark.errors import InputError, MismatchError, TokenizerError
from dllmark.relation.key import WatermarkKey
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import Tokenizer, load_tokenizer


class AnyKeyDetector:
    """Detects the watermark of any of some keys. One that is given twice is tried once.

    >>> AnyKeyDetector([Detector(key), Detector(other_key)]).detect("A short text.").keys_tried
    2
    """

    def __init__(self, detectors: Sequence[Detector]) -> None:
        if not detectors:
            raise InputError("give at least one key")
        self._detectors = list({detector.identity: detector for detector in detectors}.values())
        self._tokenizers = {one.tokenizer.fingerprint: one.tokenizer for one in self._detectors}

    def detect(self, text: TextOrIds, prompt: TextOrIds | None = None) -> Detection:
        """Score one text, or the token ids of one; the prompt is not scored."""
        return _best([detector.detect(text, prompt) for detector in self._detectors])

    def detect_many(self, texts: Iterable[str]) -> Iterator[Detection]:
        """Score a stream of texts in order, in memory that does not grow with it.

        Keys of one tokenizer share its work.
        """
        check_several(texts)
        return self._detect_batches(texts)

    def _detect_batches(self, texts: Iterable[str]) -> Iterator[Detection]:
        for batch in batches(map(scored_text, texts)):
            ids = {
                name: tokenizer.encode_many(batch) for name, tokenizer in self._tokenizers.items()
            }
            by_key = [one.detect_many(ids[one.tokenizer.fingerprint]) for one in self._detectors]
            yield from map(_best, zip(*by_key, strict=True))

    def explain(self, text: str, detection: Detection) -> list[TokenMark]:
        """Return every token of a text with its colour under the key a detection names."""
        return self._named_by(detection).explain(text)

    def spans(self, text: str, detection: Detection) -> list[Span]:
        """Return the stretches that carry the mark of the key a detection names.

        Their p-values are corrected for the number of keys too.
        """
        tried = len(self._detectors)
        spans = self._named_by(detection).spans(text, fpr=detection.fpr / tried)
        return [replace(span, p_value=span.p_value * tried) for span in spans]

    def check_claim(self, claimed: dict[str, Any]) -> None:
        """Raise `MismatchError` where a text's stored identity is none of these keys'."""
        identities = [detector.identity for detector in self._detectors]
        for identity in identities:
            if all(claimed.get(name) == value for name, value in identity.to_dict().items()):
                return
        if len(identities) == 1:
            identities[0].check_claim(claimed)
        raise MismatchError(
            f"the text was marked with key_id {claimed.get('key_id')!r}, or otherwise than these "
            f"{len(identities)} keys mark: use the key the text was generated with"
        )

    def _named_by(self, detection: Detection) -> Detector:
        return next(
            detector
            for detector in self._detectors
            if (detector.identity.key_id, detector.identity.gamma)
            == (detection.key_id, detection.gamma)
        )


def detect_any(
    keys: Sequence[Source], text: TextOrIds, prompt: TextOrIds | None = None, **options: Any
) -> Detection:
    """Return the detection by the key that fits best, corrected for having tried them all.

    Options are those of `Detector`. A watermark that is given twice is tried once.

    >>> detect_any([key, other_key], "A short text.").keys_tried
    2
    """
    if isinstance(keys, str):
        raise InputError("keys is a list: put a single one in [ ]")
    return AnyKeyDetector([Detector(key, **options) for key in keys]).detect(text, prompt)


def load_detector(
    paths: Sequence[Path],
    moved: Sequence[str] = (),
    *,
    fpr: float = 0.01,
    scoring: Scoring = "unique",
) -> AnyKeyDetector:
    """Return the detector of some key files.

    Each key says where its tokenizer is; `moved` says where tokenizers are instead.
    """
    keys = [WatermarkKey.load(path) for path in paths]
    tokenizers = key_tokenizers(keys, [load_tokenizer(source) for source in moved])
    return AnyKeyDetector(
        [
            Detector(key, tokenizers[key.tokenizer.fingerprint], fpr=fpr, scoring=scoring)
            for key in keys
        ]
    )


def key_tokenizers(
    keys: Sequence[WatermarkKey], moved: Sequence[Tokenizer] = ()
) -> dict[str, Tokenizer]:
    """Return the tokenizers of some keys by fingerprint: from `moved`, else where a key says."""
    tokenizers = {tokenizer.fingerprint: tokenizer for tokenizer in moved}
    for tokenizer in moved:
        if tokenizer.fingerprint not in {key.tokenizer.fingerprint for key in keys}:
            raise MismatchError(
                f"none of the keys was made for the tokenizer {tokenizer.name}: their fingerprints "
                "differ, so scores would mean nothing"
            )
    for key in keys:
        if key.tokenizer.fingerprint in tokenizers:
            continue
        try:
            tokenizer = load_tokenizer(key.tokenizer.name)
        except TokenizerError as error:
            hint = "If it was moved, say with --tokenizer where to"
            raise TokenizerError(f"{error}. {hint}") from None
        key.identity.check_tokenizer(tokenizer.fingerprint, tokenizer.name)
        tokenizers[key.tokenizer.fingerprint] = tokenizer
    return tokenizers


def _best(detections: Sequence[Detection]) -> Detection:
    """Return the detection by the key that fits best, corrected for their number."""
    best = min(detections, key=lambda detection: detection.p_value)
    tried = len(detections)
    p_value = min(1.0, best.p_value * tried)
    least = tried * min(detection.gamma**detection.pairs for detection in detections)
    verdict = verdict_for(p_value, least, best.fpr)
    return replace(best, verdict=verdict, p_value=p_value, keys_tried=tried)
