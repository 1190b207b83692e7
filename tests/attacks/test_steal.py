"""Stealing: colours estimated from texts alone, and the file they are kept in."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from thieves import language, texts_of

from dllmark.attacks.steal import (
    GREEN_RATE,
    RED_RATE,
    Counts,
    Estimates,
    check_enough,
    count_texts,
    estimate,
    load_estimates,
    save_estimates,
)
from dllmark.errors import InputError, MismatchError
from dllmark.relation.greenlist import HashedGreenList


@pytest.fixture(scope="module")
def green(key, tokenizer):
    return HashedGreenList(key, tokenizer.vocab_size)


@pytest.fixture(scope="module")
def unmarked(tokenizer):
    return count_texts(texts_of(tokenizer, 2000, 1), tokenizer)


def share_right(estimates, tokenizer, green):
    """How many colours of the language are known, a coin thrown for those never seen."""
    words = language(tokenizer)
    lean = estimates.lean(words[:, None], words[None, :])
    right = (lean > 0) == green.pairs(words[:, None], words[None, :])
    return np.where(lean == 0, 0.5, right).mean()


def test_more_marked_texts_tell_more_colours(tokenizer, green, unmarked):
    marked = texts_of(tokenizer, 1000, 2, green)
    few, some, many = (
        share_right(estimate(count_texts(marked[:n], tokenizer), unmarked), tokenizer, green)
        for n in (10, 100, 1000)
    )
    assert 0.55 < few < some < many
    assert many > 0.99


def test_texts_that_nobody_marked_tell_nothing(tokenizer, green, unmarked):
    others = count_texts(texts_of(tokenizer, 1000, 3), tokenizer)
    assert 0.45 < share_right(estimate(others, unmarked), tokenizer, green) < 0.55


def test_marked_texts_alone_tell_which_pairs_occur(tokenizer, green):
    marked = count_texts(texts_of(tokenizer, 10, 4, green), tokenizer)
    estimates = estimate(marked)
    assert estimates.pairs.tolist() == marked.pairs.tolist()
    assert set(estimates.log_odds) == {np.log(GREEN_RATE / RED_RATE)}


def test_each_pair_counts_once_a_text_and_never_across_two(tokenizer):
    texts = [np.array([50, 60, 50, 60, 70]), np.array([60, 70, 80]), np.array([], dtype=np.int64)]
    counts = count_texts(texts, tokenizer)
    expected = Counter(pair for text in texts for pair in set(pairwise(text.tolist())))
    found = zip(*divmod(counts.pairs, tokenizer.vocab_size), counts.texts_with, strict=True)
    assert {(left, right): times for left, right, times in found} == expected


def test_special_tokens_have_no_pair(small_tokenizer):
    special = int(np.flatnonzero(~small_tokenizer.scored)[0])
    counts = count_texts([np.array([5, special, 6, 7])], small_tokenizer)
    assert counts.pairs.tolist() == [6 * small_tokenizer.vocab_size + 7]


def test_log_odds_compare_two_binomials():
    pairs = np.array([73, 74, 75, 91])  # three tokens behind the token 7, and one behind 9
    marked, unmarked = np.array([30, 5, 0, 4]), np.array([12, 9, 6, 1])
    found = estimate(Counts(pairs, marked, 10), Counts(pairs, unmarked, 10)).log_odds
    overall = marked.sum() / unmarked.sum()
    for at, group in ((0, slice(3)), (1, slice(3)), (2, slice(3)), (3, slice(3, 4))):
        ratio = (marked[group].sum() + overall) / (unmarked[group].sum() + 1)
        chances = [ratio * rate / (ratio * rate + 1) for rate in (GREEN_RATE, RED_RATE)]
        total = marked[at] + unmarked[at]
        of_green, of_red = (stats.binom.logpmf(marked[at], total, chance) for chance in chances)
        assert found[at] == pytest.approx(of_green - of_red)


def test_a_pair_never_seen_leans_nowhere_nor_does_any_where_there_are_none():
    none = Estimates(np.zeros(0, dtype=np.int64), np.zeros(0), 10)
    some = Estimates(np.array([73, 99]), np.array([2.0, -2.0]), 10)
    left, right = np.array([7, 9, 0, 9]), np.array([3, 9, 0, 8])
    assert none.lean(left, right).tolist() == [0, 0, 0, 0]
    assert some.lean(left, right) == pytest.approx([np.tanh(1), -np.tanh(1), 0, 0])


def test_estimates_come_back_from_their_file_as_they_were(tokenizer, green, unmarked, tmp_path):
    path = tmp_path / "colours.npz"
    estimates = estimate(count_texts(texts_of(tokenizer, 20, 5, green), tokenizer), unmarked)
    save_estimates(estimates, path, tokenizer)
    again = load_estimates(path, tokenizer)
    assert again.pairs.tolist() == estimates.pairs.tolist()
    assert again.log_odds == pytest.approx(estimates.log_odds, rel=1e-6)
    with np.load(path, allow_pickle=False) as arrays:
        assert sorted(arrays) == ["about", "left", "log_odds", "right"]
        assert json.loads(str(arrays["about"]))["fingerprint"] == tokenizer.fingerprint
    assert [file.name for file in tmp_path.iterdir()] == ["colours.npz"]


def test_estimates_of_another_tokenizer_are_refused(tokenizer, small_tokenizer, tmp_path):
    save_estimates(Estimates(np.array([73]), np.array([2.0]), 10), tmp_path / "e", small_tokenizer)
    with pytest.raises(MismatchError, match="--tokenizer"):
        load_estimates(tmp_path / "e", tokenizer)


def test_estimates_of_no_pair_are_refused(tokenizer, tmp_path):
    none = Estimates(np.zeros(0, dtype=np.int64), np.zeros(0), tokenizer.vocab_size)
    save_estimates(none, tmp_path / "e", tokenizer)
    with pytest.raises(InputError, match="has no pair: steal from more texts"):
        load_estimates(tmp_path / "e", tokenizer)


@pytest.mark.parametrize("content", [b"", b"some text", b"PK\x03\x04 cut short"])
def test_a_file_without_estimates_is_refused(tokenizer, tmp_path, content):
    (tmp_path / "e").write_bytes(content)
    with pytest.raises(InputError, match="dllmark attack steal"):
        load_estimates(tmp_path / "e", tokenizer)


def test_arrays_that_are_no_estimates_are_refused(tokenizer, tmp_path):
    np.savez(tmp_path / "e.npz", left=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", about=np.array([{}], dtype=object))
    for name in ("e.npz", "pickled.npz"):
        with pytest.raises(InputError, match="holds no estimates"):
            load_estimates(tmp_path / name, tokenizer)


def test_a_missing_file_is_named(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nowhere"):
        load_estimates(tmp_path / "nowhere", tokenizer)


def test_too_few_texts_are_refused():
    check_enough(10)
    with pytest.raises(InputError, match="at least 10 of one key"):
        check_enough(9)
