"""Score a block of texts with one or more keys: the work that every engine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.any_key import key_tokenizers
from dllmark.detection.detector import Verdict, count_pairs, scored_text
from dllmark.detection.stats import binomial_tail, z_score
from dllmark.errors import InputError
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer
from dllmark.scan.encoding import Encoder

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """What a block of texts shows, a value a text: by the key that fits best, as `detect_any`."""

    verdict: NDArray[np.object_]
    z: Floats
    p_value: Floats
    pairs: NDArray[np.int64]
    key_id: NDArray[np.object_]


class Scorer:
    """Scores texts with all keys at once; keys of one tokenizer share its work.

    >>> Scorer([key, other_key], fpr=1e-6).score(["A short text."]).verdict[0]
    'too short'
    """

    def __init__(
        self, keys: Sequence[WatermarkKey], fpr: float, tokenizers: Sequence[Tokenizer] = ()
    ) -> None:
        if not keys:
            raise InputError("give at least one key")
        if not 0 < fpr < 1:
            raise InputError(f"the false-positive rate lies in (0, 1); got {fpr}")
        self.keys = list({key.identity: key for key in keys}.values())
        self.fpr = fpr
        self._groups: list[tuple[Encoder, list[int], list[HashedGreenList]]] = []
        for fingerprint, tokenizer in key_tokenizers(self.keys, tokenizers).items():
            which = [
                number
                for number, key in enumerate(self.keys)
                if key.tokenizer.fingerprint == fingerprint
            ]
            green = [HashedGreenList(self.keys[one], tokenizer.vocab_size) for one in which]
            self._groups.append((Encoder(tokenizer), which, green))

    def score(self, texts: Sequence[str]) -> Scores:
        """Score some texts, as `Detector.detect` does."""
        texts = [scored_text(text) for text in texts]
        shape = (len(self.keys), len(texts))
        green, pairs = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for encoder, which, lists in self._groups:
            counted, scored = count_pairs(lists, encoder.tokenizer, *encoder.encode(texts))
            green[which], pairs[which] = counted, scored
        gammas = [key.gamma for key in self.keys]
        tails = zip(green, pairs, gammas, strict=True)
        p_values = np.stack([binomial_tail(*one) for one in tails])
        z = np.stack([z_score(*one) for one in zip(green, pairs, gammas, strict=True)])
        least = np.min(np.array(gammas)[:, None] ** pairs, axis=0) * len(self.keys)
        best, column = np.argmin(p_values, axis=0), np.arange(len(texts))
        p_value = np.minimum(1.0, p_values[best, column] * len(self.keys))
        verdict = np.where(least > self.fpr, Verdict.TOO_SHORT.value, Verdict.NOT_DETECTED.value)
        verdict = np.where(p_value <= self.fpr, Verdict.WATERMARKED.value, verdict)
        ids = np.array([key.id for key in self.keys], dtype=np.object_)
        return Scores(
            verdict.astype(np.object_), z[best, column], p_value, pairs[best, column], ids[best]
        )
