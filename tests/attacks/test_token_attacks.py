"""Edits of tokens: how many, which, and from what random ones are drawn."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import marked_text

from dllmark.attacks.tokens import TOKEN_ATTACKS, delete, insert, ordinary, substitute, swap
from dllmark.detection.detector import Detector
from dllmark.errors import InputError

VOCABULARY = np.array([100, 101, 102])

texts = st.lists(st.integers(0, 50), max_size=60).map(lambda ids: np.array(ids, dtype=np.int64))
ratios = st.floats(0, 1)
seeds = st.integers(0, 2**32)


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(one in rest for one in part)


@given(texts, ratios, seeds)
def test_deletion_keeps_the_order_of_the_rest(ids, ratio, seed):
    result = delete(ids, ratio, np.random.default_rng(seed), VOCABULARY)
    assert len(result) == len(ids) - round(ratio * len(ids))
    assert is_subsequence(result, ids)


@given(texts, ratios, seeds)
def test_insertion_keeps_all_and_adds_random_tokens(ids, ratio, seed):
    result = insert(ids, ratio, np.random.default_rng(seed), VOCABULARY)
    added = np.isin(result, VOCABULARY)
    assert result[~added].tolist() == ids.tolist()
    assert added.sum() == round(ratio * len(ids))


@given(texts, ratios, seeds)
def test_substitution_replaces_a_share_and_moves_none(ids, ratio, seed):
    result = substitute(ids, ratio, np.random.default_rng(seed), VOCABULARY)
    changed = np.isin(result, VOCABULARY)
    assert changed.sum() == round(ratio * len(ids))
    assert result[~changed].tolist() == ids[~changed].tolist()


@given(st.integers(0, 60), ratios, seeds)
def test_a_swap_exchanges_pairs_and_changes_no_token(count, ratio, seed):
    ids = np.arange(count)
    result = swap(ids, ratio, np.random.default_rng(seed), VOCABULARY)
    assert Counter(result.tolist()) == Counter(ids.tolist())
    assert result[result].tolist() == ids.tolist()  # what moved, moved to its partner's place
    assert abs((result != ids).sum() - ratio * count) <= 1


@pytest.mark.parametrize("attack", TOKEN_ATTACKS.values(), ids=TOKEN_ATTACKS)
def test_a_ratio_of_nothing_changes_nothing_and_the_input_is_never_touched(attack):
    ids = np.arange(50)
    assert attack(ids, 0.0, np.random.default_rng(0), VOCABULARY).tolist() == ids.tolist()
    attack(ids, 0.5, np.random.default_rng(0), VOCABULARY)
    assert ids.tolist() == list(range(50))


@pytest.mark.parametrize("attack", TOKEN_ATTACKS.values(), ids=TOKEN_ATTACKS)
def test_the_seed_decides(attack):
    ids = np.arange(200)
    first, same, other = (
        attack(ids, 0.3, np.random.default_rng(seed), VOCABULARY).tolist() for seed in (1, 1, 2)
    )
    assert first == same != other


@pytest.mark.parametrize("attack", [delete, swap, substitute])
def test_every_position_is_hit_equally_often(attack):
    ids, runs, ratio = np.arange(20), 2000, 0.2
    hits = np.zeros(20)
    for seed in range(runs):
        result = attack(ids, ratio, np.random.default_rng(seed), VOCABULARY)
        hits += ~np.isin(ids, result) if attack is delete else result != ids
    expected = ratio * runs
    assert np.abs(hits - expected).max() < 5 * np.sqrt(expected * (1 - ratio))


def test_every_gap_gets_insertions_equally_often():
    ids, gaps = np.arange(9), Counter()
    for seed in range(2000):
        result = insert(ids, 1 / 9, np.random.default_rng(seed), VOCABULARY)
        gaps[int(np.flatnonzero(result >= 100)[0])] += 1
    assert sorted(gaps) == list(range(10))
    assert max(abs(count - 200) for count in gaps.values()) < 5 * np.sqrt(200)


@pytest.mark.parametrize("attack", TOKEN_ATTACKS.values(), ids=TOKEN_ATTACKS)
@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_is_a_share(attack, ratio):
    with pytest.raises(InputError, match="from 0 to 1; got"):
        attack(np.arange(9), ratio, np.random.default_rng(0), VOCABULARY)


def test_special_tokens_are_never_drawn(small_tokenizer):
    assert ordinary(small_tokenizer).tolist() == list(range(3, 35))


@pytest.mark.parametrize("attack", TOKEN_ATTACKS.values(), ids=TOKEN_ATTACKS)
def test_edits_weaken_a_mark_and_a_few_do_not_hide_it(attack, key, tokenizer):
    ids = tokenizer.encode(marked_text(key, tokenizer, share=0.85))
    untouched, some, most = (
        Detector(key, tokenizer)
        .detect(attack(ids, ratio, np.random.default_rng(0), ordinary(tokenizer)))
        .z
        for ratio in (0.0, 0.1, 0.9)
    )
    assert untouched > some > 4 > most
