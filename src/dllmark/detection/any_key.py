"""Detection with several keys: the one that fits best, corrected for having tried them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.counting import count_pairs
from dllmark.detection.detector import Detection, Detector, Scoring, TextOrIds, verdicts
from dllmark.detection.family import Encoded, FamilyDetector, Scores, text_count
from dllmark.detection.power import pairs_needed
from dllmark.detection.stats import binomial_tail, family_wise, one_of_family, z_score
from dllmark.errors import InputError, MismatchError, TokenizerError
from dllmark.relation.key import WatermarkKey
from dllmark.relation.source import Source, check_version
from dllmark.relation.tokenizer import Tokenizer, load_tokenizer


class AnyKeyDetector(FamilyDetector):
    """Detects the watermark of any of some keys. One that is given twice is tried once.

    >>> AnyKeyDetector([Detector(key), Detector(other_key)]).detect("A short text.").keys_tried
    2
    """

    def __init__(self, detectors: Sequence[Detector]) -> None:
        if not detectors:
            raise InputError("give at least one key")
        self._detectors = list({detector.identity: detector for detector in detectors}.values())
        self.tokenizers = {one.tokenizer.fingerprint: one.tokenizer for one in self._detectors}
        self._groups: dict[tuple[str, Scoring, float], list[int]] = {}
        for number, one in enumerate(self._detectors):
            alike = one.tokenizer.fingerprint, one.scoring, one.identity.gamma
            self._groups.setdefault(alike, []).append(number)
        self._fpr = np.array([one.fpr for one in self._detectors])
        self._key_ids = np.array([one.identity.key_id for one in self._detectors], dtype=np.object_)

    def __len__(self) -> int:
        return len(self._detectors)

    def _score(self, encoded: Encoded) -> Scores:
        tried = len(self._detectors)
        shape = tried, text_count(encoded)
        green, pairs = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        p_values, z = np.empty(shape), np.empty(shape)
        for (name, scoring, gamma), which in self._groups.items():
            lists = [self._detectors[one].green for one in which]
            unique = scoring == "unique"
            found, scored = count_pairs(lists, self.tokenizers[name], *encoded[name], unique=unique)
            green[which], pairs[which] = found, scored
            p_values[which] = binomial_tail(found, scored, gamma)
            z[which] = z_score(found, scored, gamma)
        best = np.argmin(p_values, axis=0), np.arange(shape[1])
        expected, needed = self._tested(best[0], encoded)
        p_value = family_wise(binomial_tail(green[best], pairs[best], expected), tried)
        verdict = verdicts(p_value, pairs[best] < needed, self._fpr[best[0]])
        return Scores(
            verdict, z[best], p_value, pairs[best], green[best], expected, best[0],
            self._key_ids[best[0]], payload=np.full(shape[1], None),
        )  # fmt: skip

    def _tested(
        self, best: NDArray[np.int64], encoded: Encoded
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the share of green pairs that each text is tested against, by its best key.

        And how many pairs a miss needs to mean something. Keys are chosen by γ alone: no share is
        below γ, so the best p-value only grows.
        """
        shares, needed = np.empty(len(best)), np.empty(len(best), dtype=np.int64)
        for number in np.unique(best):
            detector, own = self._detectors[number], best == number
            shares[own] = detector.expected_shares(*encoded[detector.tokenizer.fingerprint])[own]
            rate = one_of_family(detector.fpr, len(self))
            needed[own] = pairs_needed(shares[own], rate, detector.mark_strength)
        return shares, needed

    def _detections(self, scores: Scores) -> list[Detection]:
        names = "verdict", "z", "p_value", "pairs", "green", "expected", "key"
        columns = [getattr(scores, name) for name in names]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        tried = len(self._detectors)
        return [self._detectors[key].conclude(*row, tried) for *row, key in rows]

    def check_claim(self, claimed: dict[str, Any]) -> None:
        """Raise `MismatchError` where a text's stored identity is none of these keys'."""
        identities = [detector.identity for detector in self._detectors]
        for identity in identities:
            if identity.key_id == claimed.get("key_id") and all(
                claimed.get(name) == value for name, value in identity.to_dict().items()
            ):
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
    keys: Sequence[WatermarkKey],
    moved: Sequence[str] = (),
    *,
    fpr: float = 0.01,
    scoring: Scoring = "unique",
    marked_share: float | None = None,
) -> AnyKeyDetector:
    """Return the detector of some keys, with their tokenizers loaded.

    Each key says where its tokenizer is; `moved` says where tokenizers are instead.
    """
    found = [load_tokenizer(source) for source in moved]
    return key_detector(keys, found, fpr=fpr, scoring=scoring, marked_share=marked_share)


def key_detector(
    keys: Sequence[WatermarkKey],
    moved: Sequence[Tokenizer] = (),
    *,
    fpr: float = 0.01,
    scoring: Scoring = "unique",
    marked_share: float | None = None,
) -> AnyKeyDetector:
    """Return the detector of some keys, whose tokenizers are in `moved` or where a key says."""
    tokenizers = key_tokenizers(keys, moved)
    options: dict[str, Any] = {"fpr": fpr, "scoring": scoring, "marked_share": marked_share}
    return AnyKeyDetector(
        [Detector(key, tokenizers[key.tokenizer.fingerprint], **options) for key in keys]
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
        check_version(key, tokenizer)
        key.identity.check_tokenizer(tokenizer.fingerprint, tokenizer.name)
        tokenizers[key.tokenizer.fingerprint] = tokenizer
    return tokenizers
