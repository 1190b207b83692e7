"""Repetition is a share of n-grams, counted here the slow way."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.quality.repetition import (
    distinct_ngrams,
    doubled_words,
    is_degenerate,
    repeated_ngrams,
)


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


@given(st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=4), st.integers(1, 3))
def test_distinct_ngrams_are_a_share_of_all_of_a_set(texts, n):
    grams = [tuple(ids[at : at + n]) for ids in texts for at in range(len(ids) - n + 1)]
    found = distinct_ngrams(texts, n)
    if grams:
        assert found == pytest.approx(len(set(grams)) / len(grams))
    else:
        assert np.isnan(found)


def test_a_text_is_degenerate_above_a_fifth_of_repeated_4_grams():
    loop = [1, 2, 3, 4]
    assert not is_degenerate(loop * 2)  # one 4-gram of five, no more than a fifth
    assert is_degenerate([*loop * 2, 1])  # two of six
    assert not is_degenerate([])


@given(st.lists(st.sampled_from(["in", "In", "inn", "turn", ",", "11", "\n", "it's"])))
def test_a_word_is_doubled_where_the_next_one_is_the_same(parts):
    split = [part for part in " ".join(parts).replace("it's", "it ' s").split(" ") if part]
    spoken = [part for part in split if part != "\n"]
    words = [part for part in spoken if part.isalpha()]
    doubled = sum(one.isalpha() and one.lower() == other.lower() for one, other in pairwise(spoken))
    found = doubled_words(" ".join(parts))
    assert found == pytest.approx(doubled / len(words) if words else 0.0)


def test_a_word_is_not_doubled_by_a_longer_one_or_across_a_stop():
    assert doubled_words("in inside, inside. Inside") == 0.0
    assert doubled_words("2 2 2") == 0.0
    assert doubled_words("") == 0.0
