"""Repetition is a share of n-grams, counted here the slow way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.quality.repetition import repeated_ngrams


@given(st.lists(st.integers(0, 3)), st.integers(1, 4))
def test_an_ngram_counts_as_repeated_when_it_stood_before(ids, n):
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    repeats = sum(gram in grams[:at] for at, gram in enumerate(grams))
    expected = repeats / len(grams) if grams else 0.0
    assert repeated_ngrams(ids, n) == pytest.approx(expected)
    assert repeated_ngrams(np.array(ids, dtype=np.int64), n) == repeated_ngrams(ids, n)


def test_an_ngram_has_a_token():
    with pytest.raises(ValueError, match="at least one token"):
        repeated_ngrams([1, 2], 0)
