"""Each score is what its formula says, and its p-value the share of random keys that score so."""

import math
from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest
import scipy.stats
import siphash24
import torch

from dllmark.experiments.rivals import alignment, scores
from dllmark.experiments.rivals.coins import position_noise
from dllmark.experiments.rivals.schemes import SCHEMES
from dllmark.relation.key import Secret, WatermarkKey

SPECIAL = 3


def coin(key, label, high, low):
    """A keyed coin by another implementation of the hash."""
    return number(key, label, high, low) < key.gamma * 2**64


def number(key, label, high, low):
    secret = key.derive(f"dllmark reproduce rivals: {label}").secret.reveal()
    message = (high << 32 | low).to_bytes(8, "little")
    return int.from_bytes(siphash24.siphash24(message, key=secret).digest(), "little")


@pytest.fixture(scope="module")
def texts():
    """Ids of the small tokenizer with repeats, special tokens among them, and short ones."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 35, length) for length in (60, 25, 9, 8, 3)] + [
        np.array([5, 6] * 12),
        np.array([4]),
        np.array([0, 1]),
        np.array([], dtype=np.int64),
    ]


def words(ids):
    return [int(token) for token in ids if token >= SPECIAL]


def test_unigram_counts_each_green_token_once(small_key, small_tokenizer, texts):
    for ids, found in zip(texts, scores.unigram(small_key, small_tokenizer)(texts), strict=True):
        distinct = set(words(ids))
        green = sum(coin(small_key, "unigram", 0, token) for token in distinct)
        assert found.count == len(distinct)
        expected = scipy.stats.binom.sf(green - 1, len(distinct), 0.5)
        assert found.p_value == pytest.approx(expected)
        deviation = math.sqrt(len(distinct) / 4) or 1
        assert found.z == pytest.approx((green - len(distinct) / 2) / deviation)


def test_both_sides_add_up_to_m_left_plus_m_right_less_one(small_key, small_tokenizer):
    ids = np.array([7, 9, 30, 12, 20, 5, 17])  # no pair twice
    total = 0
    for left, here, right in zip(ids, ids[1:], ids[2:], strict=False):
        on_left = coin(small_key, "lr-dwm left", int(left), int(here))
        on_right = coin(small_key, "lr-dwm right", int(here), int(right))
        total += on_left + on_right - 1
    [found] = scores.left_and_right(small_key, small_tokenizer)([ids])
    assert found.z == pytest.approx(total / math.sqrt(5 / 2))
    assert found.count == 10
    assert found.p_value == pytest.approx(scipy.stats.binom.sf(total + 5 - 1, 10, 0.5))


def test_both_sides_count_a_repeated_pair_once_and_no_special_token(
    small_key, small_tokenizer, texts
):
    scorer = scores.left_and_right(small_key, small_tokenizer)
    for ids, found in zip(texts, scorer(texts), strict=True):
        triples = [
            tuple(map(int, three))
            for three in zip(ids, ids[1:], ids[2:], strict=False)
            if min(three) >= SPECIAL
        ]
        lefts = {(left, here) for left, here, _ in triples}
        rights = {(here, right) for _, here, right in triples}
        green = sum(coin(small_key, "lr-dwm left", *pair) for pair in lefts)
        green += sum(coin(small_key, "lr-dwm right", *pair) for pair in rights)
        count = len(lefts) + len(rights)
        assert found.count == count
        assert found.p_value == pytest.approx(scipy.stats.binom.sf(green - 1, count, 0.5))


def parity_matches(ids, coins):
    return sum(coins[token] == at % 2 for at, token in enumerate(ids) if token >= SPECIAL)


def test_parity_counts_matches_and_its_p_value_is_that_of_all_keys(
    small_key, small_tokenizer, texts
):
    scorer = scores.parity(small_key, small_tokenizer)
    own = {token: coin(small_key, "dgmark", 0, token) for token in range(35)}
    for ids, found in zip(texts, scorer(texts), strict=True):
        matches, count = parity_matches(ids, own), len(words(ids))
        assert found.count == count
        if count:
            assert found.z == pytest.approx((matches - count / 2) / math.sqrt(count / 4))
        distinct = sorted(set(words(ids)))
        if len(distinct) <= 10:  # all ways the coins can fall
            ways = [dict(zip(distinct, fall, strict=True))
                    for fall in product([0, 1], repeat=len(distinct))]  # fmt: skip
            as_high = sum(parity_matches(ids, fall) >= matches for fall in ways)
            assert found.p_value == pytest.approx(as_high / len(ways))


def window_score(ids, coins):
    right = [coins[token] == at % 2 for at, token in enumerate(ids) if token >= SPECIAL]
    squares = []
    for first in range(len(right) - 7):
        z = (sum(right[first : first + 8]) - 4) / math.sqrt(8 / 4)
        squares.append(z * z)
    return sum(squares) / len(squares)


def test_windows_are_scored_by_their_squared_z_and_compared_with_random_keys(
    small_key, small_tokenizer, texts
):
    scorer = scores.windows(small_key, small_tokenizer)
    own = {token: coin(small_key, "dgmark", 0, token) for token in range(35)}
    for ids, found in zip(texts, scorer(texts), strict=True):
        if len(words(ids)) < 8:
            assert found == scores.NOTHING
            continue
        assert found.z == pytest.approx(window_score(ids, own))
        distinct = sorted(set(words(ids)))
        if len(distinct) <= 8:
            ways = [dict(zip(distinct, fall, strict=True))
                    for fall in product([0, 1], repeat=len(distinct))]  # fmt: skip
            exact = np.mean([window_score(ids, fall) >= found.z - 1e-9 for fall in ways])
            assert found.p_value == pytest.approx(exact, abs=0.02)


def test_windows_of_a_text_with_many_distinct_tokens_are_compared_too(key, tokenizer):
    words = np.flatnonzero(tokenizer.scored)[:700]
    assert len(words) > scores.MOST_DISTINCT
    [found] = scores.windows(key, tokenizer)([words])
    falls = np.random.default_rng(5).random((2000, 700)) < 0.5
    sums = np.lib.stride_tricks.sliding_window_view(falls, 8, axis=1).sum(-1)
    random = (((sums - 4) / math.sqrt(2)) ** 2).mean(1)  # distinct tokens: matches are coins
    assert found.p_value == pytest.approx(np.mean(random >= found.z), abs=0.04)


def test_keyed_exponentials_add_up_to_a_gamma_variable(small_key, small_tokenizer, texts):
    scorer = scores.position_exponentials(small_key, small_tokenizer)
    for ids, found in zip(texts, scorer(texts), strict=True):
        total, count = 0.0, 0
        for at, token in enumerate(ids.tolist()):
            if token >= SPECIAL:
                u = ((number(small_key, "gumbel", at, token) >> 11) + 0.5) / 2**53
                total -= math.log(1 - u)
                count += 1
        assert found.count == count
        if count:
            assert found.z == pytest.approx((total - count) / math.sqrt(count))
            assert found.p_value == pytest.approx(scipy.stats.gamma.sf(total, count))


def naive_likelihood(key, words):
    """The mean over all alignments, one token after the other, of the ratios along each."""
    positions = min(2 * len(words), 512)

    @cache
    def ratio(token, at):
        digits = number(key, "gumbel", at, token) >> 56
        return 256 * (math.sqrt(1 - digits / 256) - math.sqrt(1 - (digits + 1) / 256))

    @cache
    def rest(number, state):
        if number == len(words):
            return 1.0
        token = words[number]
        if state == "after":
            return rest(number + 1, "after")
        if state == "before":
            begun = sum(ratio(token, at) * rest(number + 1, at) for at in range(positions))
            return rest(number + 1, "before") * 199 / 200 + begun / 200 / positions
        total = 0.1 * rest(number + 1, state) + rest(number + 1, "after") / 200
        for lost in range(3):
            at = state + 1 + lost
            if at < positions:
                chance = (1 - 0.1 - 1 / 200) * (1 - 0.15) * 0.15**lost
                total += chance * ratio(token, at) * rest(number + 1, at)
        return total

    return rest(0, "before") / 2 + rest(0, -1) / 2


def test_an_aligned_text_is_scored_by_all_its_alignments(small_key, small_tokenizer, texts):
    scorer = alignment.aligned(small_key, small_tokenizer)
    for ids, found in zip(texts, scorer(texts), strict=True):
        if words(ids):
            assert found.z == pytest.approx(math.log(naive_likelihood(small_key, words(ids))))
            assert found.count == len(words(ids))
        else:
            assert found == scores.NOTHING


def test_aligned_texts_with_loops_are_compared_with_what_other_keys_find_in_them(small_tokenizer):
    ids = np.array([5, 6] * 12 + [7] * 12)
    rng = np.random.default_rng(7)
    keys = [WatermarkKey(Secret(rng.bytes(16)), 0.5, small_tokenizer.id) for _ in range(300)]
    found = [alignment.aligned(key, small_tokenizer)([ids])[0] for key in keys]
    by_z = np.array([one.z for one in found])
    for one in found[:50]:
        assert one.p_value == pytest.approx(np.mean(by_z >= one.z), abs=0.1)


def test_keys_find_every_text_as_likely_unmarked_as_marked_in_the_mean():
    place = np.array([0, 1] * 6 + [2] * 4)  # the less alignments run out of positions, the nearer 1
    digits = np.random.default_rng(3).integers(0, 256, (3, 32, 40_000), dtype=np.uint8)
    found = alignment.likelihood(alignment.RATIOS, digits, place)
    assert 0.9 < found.mean() < 1.02


def keyed_text(key, length):
    """Tokens of the largest keyed number among eight at each position."""
    rng = np.random.default_rng(2)
    choices = rng.integers(SPECIAL, 35, (length, 8))
    noise = position_noise(key, np.arange(length)[:, None], choices)
    return choices[np.arange(length), noise.argmax(1)]


def test_a_mark_of_positions_is_found_although_its_tokens_moved(small_key, small_tokenizer):
    ids = keyed_text(small_key, 80)
    rng = np.random.default_rng(4)
    gone = rng.permutation(80)[:16]
    others = rng.integers(SPECIAL, 35, 100)
    moved = [
        np.delete(ids, gone),
        np.insert(ids, gone, others[:16]),
        ids[35:],
        np.concatenate([others, ids]),
        np.concatenate([ids[:30], ids[45:]]),
    ]
    by_position = scores.position_exponentials(small_key, small_tokenizer)
    by_alignment = alignment.aligned(small_key, small_tokenizer)
    assert by_position([ids])[0].p_value < 1e-6
    for text in (ids, *moved):
        assert by_alignment([text])[0].p_value == 0.001
    for text in moved[:4]:
        assert by_position([text])[0].p_value > 0.001


def test_keyed_noise_is_the_same_in_numpy_and_on_tensors(small_key):
    positions, tokens = np.arange(50) * 7, np.arange(50)
    expected = position_noise(small_key, positions, tokens)
    found = position_noise(small_key, torch.from_numpy(positions), torch.from_numpy(tokens))
    assert found.tolist() == expected.tolist()
    assert scipy.stats.kstest(expected, "uniform").pvalue > 0.01


@pytest.mark.parametrize(("total", "count"), [(0.0, 3), (2.5, 1), (900.0, 200), (150.0, 200)])
def test_a_gamma_tail_is_scipys(total, count):
    assert scores.gamma_tail(total, count) == pytest.approx(scipy.stats.gamma.sf(total, count))


@pytest.mark.parametrize("name", ["unigram", "kgw-left-to-right", "lr-dwm", "dgmark", "gumbel"])
def test_a_text_that_nobody_marked_is_accused_as_often_as_promised(name, small_tokenizer):
    rng = np.random.default_rng(1)
    ids = [rng.integers(SPECIAL, 35, 60) for _ in range(4)]
    hits: Counter[str] = Counter()
    keys = 60
    for _ in range(keys):
        key = WatermarkKey(Secret(rng.bytes(16)), SCHEMES[name].gamma, small_tokenizer.id)
        for kind, scorer in SCHEMES[name].scores.items():
            hits[kind] += sum(found.p_value <= 0.2 for found in scorer(key, small_tokenizer)(ids))
    for kind in SCHEMES[name].scores:
        most = scipy.stats.binom.ppf(0.999, keys * len(ids), 0.2)
        assert 0 < hits[kind] <= most
