"""Count the green pairs of many texts under many green lists at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dllmark.relation.greenlist import GreenList, colours
from dllmark.relation.tokenizer import Ids, Tokenizer


def count_pairs(
    lists: Sequence[GreenList],
    tokenizer: Tokenizer,
    ids: Ids,
    lengths: NDArray[np.int64],
    *,
    unique: bool = True,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each green list the green pairs of each text, and the pairs of each text.

    The texts stand one behind the other in `ids`. A pair counts once a text where `unique`.

    >>> detector, ids = Detector(key), np.arange(100, 109)
    >>> count_pairs([detector.green], detector.tokenizer, ids, np.array([4, 5]))[1]
    array([3, 4])
    """
    count = len(lengths)
    text = np.repeat(np.arange(count), lengths)
    left, right = ids[:-1], ids[1:]
    usable = tokenizer.scored[left] & tokenizer.scored[right]
    usable &= text[:-1] == text[1:]
    left, right, text = left[usable], right[usable], text[1:][usable]
    which: slice | NDArray[np.int64] = slice(None)
    if unique:
        # One sort brings the repeats within a text together, and also those between texts: every
        # pair is coloured once for all texts. `np.unique` takes far longer than sorting.
        bits, low = tokenizer.vocab_size.bit_length(), count.bit_length()
        code = np.sort((((left << bits) | right) << low) | text)
        code = code[_first_of_run(code)]
        text, pair = code & ((1 << low) - 1), code >> low
        first = _first_of_run(pair)
        which = np.cumsum(first) - 1
        pair = pair[first]
        left, right = pair >> bits, pair & ((1 << bits) - 1)
    green = np.empty((len(lists), count), dtype=np.int64)
    for counted, coloured in zip(green, colours(lists, left, right), strict=True):
        counted[:] = np.bincount(text[coloured[which]], minlength=count)
    return green, np.bincount(text, minlength=count)


def _first_of_run(ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where a value differs from the one before it."""
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first
