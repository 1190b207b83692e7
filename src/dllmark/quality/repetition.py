"""How much a text repeats itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dllmark.relation.tokenizer import Ids

DEGENERATE = 0.2
"""A text is degenerate where more than this share of its 4-grams repeats (TANGO's measure)."""

WORD = r"\b[^\W\d_]+\b"


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


def is_degenerate(ids: Sequence[int] | Ids) -> bool:
    """Return whether a text loops: more than a fifth of its 4-grams stood in it before.

    >>> is_degenerate([1, 2, 3, 4] * 5), is_degenerate(range(20))
    (True, False)
    """
    return repeated_ngrams(ids, 4) > DEGENERATE


def distinct_ngrams(texts: Sequence[Sequence[int] | Ids], n: int = 2) -> float:
    """Return the share of the n-grams of a set of texts that are distinct (distinct-n).

    The more texts a set has, the lower it is: compare sets of the same prompts only. It is not a
    number where no text has an n-gram.

    >>> distinct_ngrams([[1, 2, 3], [1, 2, 4]])
    0.75
    """
    windows = np.lib.stride_tricks.sliding_window_view
    grams = [windows(np.asarray(ids), n) for ids in texts if len(ids) >= n]
    if not grams:
        return float("nan")
    together = np.concatenate(grams)
    return len(np.unique(together, axis=0)) / len(together)


def doubled_words(text: str) -> float:
    """Return the share of a text's words that are followed by themselves, as in "in in turn".

    Who fills places out of order writes a word into two of them: people hardly ever do. A word is
    made of letters, and case does not count. A text without a word doubles none.

    >>> doubled_words("The the cat sat, sat in in")
    0.2857142857142857
    """
    words = re.findall(WORD, text)
    doubled = re.findall(rf"({WORD})(?=\s+\1\b)", text, re.IGNORECASE)
    return len(doubled) / len(words) if words else 0.0
