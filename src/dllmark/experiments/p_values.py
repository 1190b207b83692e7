"""The p-values of texts by their length: what experiments count, as `dllmark detect` decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.detector import Detector
from dllmark.relation.tokenizer import Ids

Floats = NDArray[np.float64]


def p_by_length(
    texts: Sequence[Sequence[int] | Ids], detector: Detector, lengths: Sequence[int]
) -> dict[int, Floats]:
    """Return for each length the p-values of the beginnings of the texts that reach it.

    A length that no text reaches is left out.

    >>> p_values = p_by_length([[17, 40], [17, 40, 9, 12]], Detector(key), [2, 4, 8])
    >>> {length: len(p) for length, p in p_values.items()}
    {2: 2, 4: 1}
    """
    p_values = {}
    for length in lengths:
        cut = [ids[:length] for ids in texts if len(ids) >= length]
        if cut:
            found = [detection.p_value for detection in detector.detect_many(cut)]
            p_values[length] = np.array(found)
    return p_values
