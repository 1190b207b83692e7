"""A key is fair to its texts: they are tested against what it leads to expect, not only γ."""

import json
from itertools import pairwise

import numpy as np
import pytest
from samples import marked_text, plain_text
from scipy import stats
from siphash24 import siphash24

from dllmark.detection.detector import Detector, Verdict
from dllmark.detection.expected import LIST, common_pairs, key_fairness
from dllmark.detection.spans import best_segments
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import Secret, WatermarkKey

RECORD = json.loads(LIST.read_text(encoding="utf-8"))


def fixed_key(tokenizer, number, gamma=0.5):
    return WatermarkKey(Secret(number.to_bytes(16, "little")), gamma, tokenizer.id)


def ordinary_text(tokenizer, rng, length=200):
    """Follow the list from word to word as often as it says, with other tokens in between."""
    ids, left = [], ""
    while len(ids) < length:
        if left not in RECORD["common"]:
            left = rng.choice(list(RECORD["lefts"]), p=LEFT_SHARES)
            ids += tokenizer.encode(left).tolist()
        rights = np.array(list(RECORD["common"][left].values()))
        if rng.random() < rights.sum() / RECORD["lefts"][left]:
            left = rng.choice(list(RECORD["common"][left]), p=rights / rights.sum())
            ids += tokenizer.encode(left).tolist()
        else:
            left = ""
            ids += rng.integers(1000, tokenizer.vocab_size, rng.integers(2)).tolist()
    return np.array(ids[:length])


LEFT_SHARES = np.array(list(RECORD["lefts"].values())) / sum(RECORD["lefts"].values())


@pytest.fixture(scope="module")
def ordinary(tokenizer):
    """250 texts as the list expects them."""
    rng = np.random.default_rng(5)
    return [ordinary_text(tokenizer, rng) for _ in range(250)]


@pytest.fixture(scope="module")
def shares(tokenizer):
    """The share of green pairs that ordinary text has under each of 200 keys."""
    return [fairness(fixed_key(tokenizer, number), tokenizer).share for number in range(200)]


@pytest.fixture(scope="module")
def unluckiest(tokenizer, shares):
    """The ten keys of 200 under which ordinary text is greenest, the greenest first."""
    numbers = sorted(range(200), key=lambda number: -shares[number])
    return [fixed_key(tokenizer, number) for number in numbers[:10]]


@pytest.fixture(scope="module")
def unlucky(unluckiest):
    """A key under which ordinary text is greener than it should be."""
    return unluckiest[0]


def fairness(key, tokenizer):
    return key_fairness(HashedGreenList(key, tokenizer.vocab_size), tokenizer)


def test_unlucky_keys_no_longer_accuse_too_often(unluckiest, tokenizer, ordinary):
    detectors = [Detector(key, tokenizer) for key in unluckiest]
    long = [np.concatenate(ordinary[start : start + 4]) for start in range(0, 248, 4)]
    found = [one for detector in detectors for one in detector.detect_many(long)]
    against_gamma = [stats.binom.sf(one.green - 1, one.pairs, 0.5) for one in found]
    assert sum(p <= 0.01 for p in against_gamma) > 0.015 * len(found)
    assert sum(one.p_value <= 0.01 for one in found) <= 0.01 * len(found)


def test_a_p_value_is_the_binomial_tail_at_the_expected_share_and_never_below_that_at_gamma(
    tokenizer, ordinary
):
    for number, gamma in enumerate((0.25, 0.5, 0.7)):
        detector = Detector(fixed_key(tokenizer, number, gamma), tokenizer)
        for one in detector.detect_many(ordinary[:100]):
            tail = stats.binom.sf(one.green - 1, one.pairs, one.expected)
            assert one.p_value == pytest.approx(tail, rel=1e-9)
            assert one.expected >= gamma
            assert one.p_value >= stats.binom.sf(one.green - 1, one.pairs, gamma) * (1 - 1e-9)


def test_over_keys_a_text_is_accused_at_most_at_the_stated_rate(tokenizer, ordinary):
    """The promise for one text and any key: coins that are independent of it."""
    hits = sum(
        Detector(fixed_key(tokenizer, number), tokenizer).detect(ordinary[0]).p_value <= 0.05
        for number in range(600)
    )
    assert stats.binom.sf(hits - 1, 600, 0.05) > 1e-3
    assert hits > 5


def test_the_expected_share_is_what_a_loop_over_the_list_gives(key, tokenizer, ordinary):
    """Colours by another SipHash, counts in plain dictionaries."""
    seen, followed = {}, {}
    for left, times in RECORD["lefts"].items():
        ids = tokenizer.encode(left).tolist()
        for token in ids:
            seen[token] = seen.get(token, 0) + times
        for pair in set(pairwise(ids)):
            followed[pair] = followed.get(pair, 0) + times
        for right, count in RECORD["common"][left].items():
            both = tokenizer.encode(left + right).tolist()
            if both[: len(ids)] == ids and len(both) > len(ids):
                pair = both[len(ids) - 1], both[len(ids)]
                followed[pair] = followed.get(pair, 0) + count
    excess = {}
    for (left, right), count in followed.items():
        message = (left << 32 | right).to_bytes(8, "little")
        digest = siphash24(message, key=key.secret.reveal()).digest()
        green = int.from_bytes(digest, "little") < 1 << 63
        share = count / (seen[left] + 20)
        excess[left] = excess.get(left, 0) + share * (green - 0.5)
    detector = Detector(key, tokenizer)
    for ids in ordinary[:20]:
        mean = sum(excess.get(token, 0) for token in ids[:-1].tolist()) / (len(ids) - 1)
        assert detector.detect(ids).expected == pytest.approx(0.5 + max(0, mean))


def test_text_without_common_words_is_tested_against_gamma(key, small_tokenizer):
    words = "w1 w2 w3 w4 w1 w5 w6 w7 w9"
    own = WatermarkKey(key.secret, 0.5, small_tokenizer.id)
    assert Detector(own, small_tokenizer).detect(words).expected == 0.5


def test_every_pair_scored_as_in_the_paper_is_tested_against_gamma(unlucky, tokenizer, ordinary):
    assert Detector(unlucky, tokenizer, scoring="all").detect(ordinary[0]).expected == 0.5
    assert Detector(unlucky, tokenizer).detect(ordinary[0]).expected > 0.5


@pytest.mark.parametrize("words", [30, 50, 200])
def test_marked_text_is_found_as_before_also_by_an_unlucky_key(unlucky, tokenizer, words):
    for key in (unlucky, *(fixed_key(tokenizer, number) for number in range(5))):
        text = marked_text(key, tokenizer, words, share=0.85)
        found = Detector(key, tokenizer, fpr=0.001).detect(text)
        assert stats.binom.sf(found.green - 1, found.pairs, 0.5) <= 0.001
        assert found.verdict is Verdict.WATERMARKED


def test_a_stretch_is_tested_against_the_expected_share_too(unlucky, tokenizer, ordinary):
    detector = Detector(unlucky, tokenizer)
    text = tokenizer.decode(ordinary[0]) + marked_text(unlucky, tokenizer)
    scored, green = detector.colours(tokenizer.encode(text))
    [at_gamma] = best_segments(green[scored], 0.5, 0.01)
    [span] = detector.spans(text)
    assert detector.detect(text).expected > 0.5
    assert at_gamma.p_value < span.p_value <= 0.01


def test_a_keys_fairness_is_the_share_of_green_pairs_in_ordinary_text(tokenizer, ordinary, unlucky):
    shares, said = [], []
    for key in (unlucky, *(fixed_key(tokenizer, number) for number in range(20))):
        found = list(Detector(key, tokenizer).detect_many(ordinary))
        shares.append(sum(one.green for one in found) / sum(one.pairs for one in found))
        said.append(fairness(key, tokenizer).share)
    assert np.corrcoef(shares, said)[0, 1] > 0.8


def test_an_unlucky_key_is_said_to_be_one(unlucky, tokenizer):
    said = fairness(unlucky, tokenizer)
    assert said.share > 0.5 + 2 * said.spread
    needed = stats.binom.isf(0.01, 200, 0.5) + 1
    assert said.against_gamma == pytest.approx(stats.binom.sf(needed - 1, 200, said.share))
    assert said.against_gamma > 0.015 > 0.01 >= said.against_share


def test_random_keys_spread_as_stated(tokenizer, shares):
    spread = fairness(fixed_key(tokenizer, 0), tokenizer).spread
    assert np.std(shares) == pytest.approx(spread, rel=0.2)
    assert np.mean(shares) == pytest.approx(0.5, abs=4 * spread / 200**0.5)


def test_successors_of_a_token_are_probabilities(tokenizer):
    common = common_pairs(tokenizer)
    total = np.bincount(common.place[common.left], common.weight)
    assert total[1:].min() > 0
    assert total.max() <= 1


def test_random_words_are_expected_to_be_hardly_greener_than_gamma(unlucky, tokenizer):
    expected = Detector(unlucky, tokenizer).detect(plain_text(tokenizer)).expected
    assert 0.5 <= expected < 0.51
