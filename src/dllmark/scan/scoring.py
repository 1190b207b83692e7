"""Score a block of texts with one or more keys: the work that every engine does."""

from __future__ import annotations

from collections.abc import Sequence

from dllmark.detection.any_key import key_detector
from dllmark.detection.detector import scored_text
from dllmark.detection.family import FamilyDetector, Scores
from dllmark.detection.payload import PayloadDetector
from dllmark.relation.key import WatermarkKey
from dllmark.relation.payload import Payloads
from dllmark.relation.tokenizer import Tokenizer
from dllmark.scan.encoding import Encoder


class Scorer:
    """Scores texts with all keys at once; keys of one tokenizer share its work.

    With payloads, there is one key, and all its payloads are tried.

    >>> Scorer([key, other_key], fpr=1e-6).score(["A short text."]).verdict[0]
    'too short'
    """

    def __init__(
        self,
        keys: Sequence[WatermarkKey],
        fpr: float,
        tokenizers: Sequence[Tokenizer] = (),
        payloads: Payloads | None = None,
    ) -> None:
        self._detector: FamilyDetector = key_detector(keys, tokenizers, fpr=fpr)
        if payloads is not None:
            [tokenizer] = self._detector.tokenizers.values()
            [key] = keys
            self._detector = PayloadDetector(key, payloads, tokenizer, fpr=fpr)
        self._encoders = {
            name: Encoder(tokenizer) for name, tokenizer in self._detector.tokenizers.items()
        }

    def score(self, texts: Sequence[str]) -> Scores:
        """Score some texts, as the detector does one by one."""
        texts = [scored_text(text) for text in texts]
        return self._detector.score(
            {name: encoder.encode(texts) for name, encoder in self._encoders.items()}
        )
