"""Score a block of texts with one or more keys: the work that every engine does."""

from __future__ import annotations

from collections.abc import Sequence

from dllmark.detection.any_key import key_detector
from dllmark.detection.detector import scored_text
from dllmark.detection.family import Scores
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer
from dllmark.scan.encoding import Encoder


class Scorer:
    """Scores texts with all keys at once; keys of one tokenizer share its work.

    >>> Scorer([key, other_key], fpr=1e-6).score(["A short text."]).verdict[0]
    'too short'
    """

    def __init__(
        self, keys: Sequence[WatermarkKey], fpr: float, tokenizers: Sequence[Tokenizer] = ()
    ) -> None:
        self._detector = key_detector(keys, tokenizers, fpr=fpr)
        self._encoders = {
            name: Encoder(tokenizer) for name, tokenizer in self._detector.tokenizers.items()
        }

    def score(self, texts: Sequence[str]) -> Scores:
        """Score some texts, as the detector does one by one."""
        texts = [scored_text(text) for text in texts]
        return self._detector.score(
            {name: encoder.encode(texts) for name, encoder in self._encoders.items()}
        )
