"""How much a text repeats itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dllmark.relation.tokenizer import Ids


def repeated_ngrams(ids: Sequence[int] | Ids, n: int = 2) -> float:
    """Return the share of a text's n-grams that stood in it before.

    It is 0 where nothing repeats, and nears 1 for one word over and over. A text without an n-gram
    repeats none. The length that goes with it is `len(ids)`.

    >>> repeated_ngrams([1, 2, 1, 2, 1])
    0.5
    """
    if n < 1:
        raise ValueError("an n-gram has at least one token")
    if len(ids) < n:
        return 0.0
    grams = np.lib.stride_tricks.sliding_window_view(np.asarray(ids), n)
    return 1 - len(np.unique(grams, axis=0)) / len(grams)
