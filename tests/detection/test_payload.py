"""Which payload a text carries: the right one, unclear, or none, at the stated rates."""

import json
import math
import pickle
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from samples import marked_text, plain_text
from scipy import integrate, stats

from dllmark.detection import payload as module
from dllmark.detection.detector import Detector
from dllmark.detection.expected import LIST, key_fairness
from dllmark.detection.payload import PayloadDetector, Screen
from dllmark.errors import InputError, MismatchError
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.relation.payload import Payloads
from dllmark.relation.tokenizer import load_tokenizer

SPACE, SMALL = Payloads(10), Payloads(3)


@pytest.fixture(scope="module")
def detector(key, tokenizer):
    return PayloadDetector(key, SPACE, tokenizer)


@pytest.fixture
def screened(monkeypatch):
    """Screen also these few payloads."""
    monkeypatch.setattr(module, "SCREENED", 1)


@pytest.mark.parametrize("number", [0, 471, 1023])
def test_the_payload_of_a_marked_text_is_found(detector, key, tokenizer, number):
    text = marked_text(SPACE.key(key, number), tokenizer, 100, number, share=0.9)
    detection = detector.detect(text)
    alone = Detector(SPACE.key(key, number), tokenizer).detect(text)
    assert (detection.payload, detection.keys_tried) == (number, 1024)
    assert detection.p_value == pytest.approx(1 - (1 - alone.p_value) ** 1024, rel=1e-3)
    for name in ("verdict", "z", "pairs", "green", "key_id", "gamma", "scheme"):
        assert getattr(detection, name) == getattr(alone, name)


@pytest.mark.usefixtures("screened")
def test_a_screen_finds_the_same_payload(detector, key, tokenizer):
    text = marked_text(SPACE.key(key, 471), tokenizer, 100, share=0.9)
    assert detector.detect(text).payload == 471


def test_a_text_from_a_list_is_found(key, tokenizer):
    customers = Payloads(["acme", "globex", "initech"])
    text = marked_text(key.derive("globex"), tokenizer, 60, share=0.9)
    assert PayloadDetector(key, customers, tokenizer).detect(text).payload == "globex"


def test_text_of_another_master_or_of_none_has_no_payload(detector, key, tokenizer):
    for text in (plain_text(tokenizer), marked_text(key, tokenizer)):
        detection = detector.detect(text)
        assert (detection.verdict.value, detection.payload) == ("not detected", None)


def test_a_text_too_short_for_so_many_payloads_is_told(detector, key, tokenizer):
    detection = detector.detect(marked_text(SPACE.key(key, 3), tokenizer, 17))
    assert (detection.pairs, detection.verdict.value) == (16, "too short")  # 1024 / 2^16 > 0.01
    long_enough = detector.detect(marked_text(SPACE.key(key, 3), tokenizer, 18))
    assert long_enough.verdict.value == "watermarked"


def test_a_text_of_two_payloads_is_marked_and_its_payload_unclear(detector, key, tokenizer):
    both = [HashedGreenList(SPACE.key(key, n), tokenizer.vocab_size) for n in (3, 4)]
    rng = np.random.default_rng(0)
    ids = [300]
    while len(ids) < 100:
        candidates = rng.integers(300, 9000, 64)
        green = [one.pairs(np.full(64, ids[-1]), candidates) for one in both]
        ids.append(int(candidates[green[0] & green[1]][0]))
    detection = detector.detect(ids)
    assert (detection.verdict.value, detection.payload) == ("watermarked", None)
    assert detection.to_dict()["payload"] is None


@pytest.mark.parametrize("gamma", [0.5, 0.25])
@pytest.mark.usefixtures("screened")
def test_counts_are_those_of_each_payloads_own_detector(key, tokenizer, gamma):
    """The best of those that pass the screen, by a loop over detectors."""
    key, space = replace(key, gamma=gamma), Payloads(6)
    detector = PayloadDetector(key, space, tokenizer)
    for seed in range(5):
        text = plain_text(tokenizer, 80, seed)
        found = detector.detect(text)
        ids = np.unique(np.lib.stride_tricks.sliding_window_view(tokenizer.encode(text), 2), axis=0)
        first, rest = ids[::3], np.delete(ids, slice(None, None, 3), axis=0)
        least = int(stats.binom.isf(1 / 8, len(first), gamma))
        while stats.binom.sf(least, len(first), gamma) >= 1 / 8:
            least += 1
        totals = {}
        for number in range(64):
            green = HashedGreenList(space.key(key, number), tokenizer.vocab_size)
            count = int(green.pairs(*first.T).sum())
            if count >= least:
                totals[space.key(key, number).id] = count + int(green.pairs(*rest.T).sum())
        assert found.green == max(totals.values()) == totals[found.key_id]


@pytest.mark.parametrize(
    ("first", "rest", "gamma", "expected"),
    [(0, 30, 0.5, 0.5), (10, 20, 0.5, 0.5), (7, 16, 0.25, 0.25), (10, 20, 0.5, 0.5625)],
)
def test_the_chance_behind_a_screen_is_exact(first, rest, gamma, expected):
    """Against rational arithmetic over all counts of the two parts."""
    screen = Screen(first, rest, gamma)

    def probability(k, n, share=expected):
        p = Fraction(share)
        return math.comb(n, k) * p**k * (1 - p) ** (n - k)

    def at_least(k, n, share=expected):
        return sum(probability(i, n, share) for i in range(max(k, 0), n + 1))

    passing = at_least(screen.least, first, gamma)
    assert at_least(screen.least + 1, first, gamma) < Fraction(1, 8) <= passing
    for green in range(screen.least, first + rest + 1):
        exact = sum(
            probability(x, first) * at_least(green - x, rest)
            for x in range(screen.least, first + 1)
        )
        assert screen.chance(green, expected) == pytest.approx(float(exact), rel=1e-9)
    all_green = screen.chance(first + rest, expected)
    assert all_green == pytest.approx(expected ** (first + rest), rel=1e-12)


@pytest.mark.parametrize("screening", [False, True])
def test_of_texts_by_nobody_the_stated_share_is_taken_for_marked(
    key, tokenizer, screening, monkeypatch
):
    monkeypatch.setattr(module, "SCREENED", 1 if screening else 4096)
    rng = np.random.default_rng(1)
    detector = PayloadDetector(key, Payloads(7), tokenizer, fpr=0.2)
    p_values = np.array([detector.detect(rng.integers(200, 9000, 60)).p_value for _ in range(150)])
    for rate in (0.05, 0.2, 0.5):
        assert stats.binom.sf((p_values <= rate).sum() - 1, 150, rate) > 1e-3
    assert stats.binom.cdf((p_values <= 0.5).sum(), 150, 0.3) > 1e-3  # and not far fewer


def simulated(rng, screen, rate, payloads, fpr):
    """Return what becomes of a text marked at a rate, by drawing the counts of all payloads."""
    right = rng.binomial(screen.rest, rate)
    counts = np.append(rng.binomial(screen.rest, 0.5, payloads - 1), right)
    best = int(counts.max())
    if 1 - (1 - screen.chance(best, 0.5)) ** payloads > fpr:
        return "not detected"
    others = np.delete(counts, counts.argmax())
    if screen.doubt(best, others, others[:0]) > fpr:
        return "unclear"
    return "right" if right == best else "wrong"


@pytest.mark.parametrize("rate", [0.5, 0.65, 0.75, "any"])
def test_a_wrong_payload_is_named_less_often_than_stated(rate):
    rng, screen, fpr = np.random.default_rng(0), Screen(0, 40, 0.5), 0.1
    outcomes = [
        simulated(rng, screen, rng.uniform(0.5, 1) if rate == "any" else rate, 256, fpr)
        for _ in range(500)
    ]
    wrong, right = outcomes.count("wrong"), outcomes.count("right")
    assert stats.binom.sf(wrong - 1, 500, fpr) > 1e-3
    assert outcomes.count("unclear") > 0
    if rate == "any":  # of those that are named, too
        assert right > 150
        assert stats.binom.sf(wrong - 1, wrong + right, fpr) > 1e-3


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_doubt_is_bayes_rule(gamma):
    """Against likelihoods integrated numerically over the rate of green pairs in marked text."""
    pairs, counts = 20, np.array([17, 13, 9, 4])
    weights = [
        integrate.quad(lambda rate, k=k: stats.binom.pmf(k, pairs, rate), gamma, 1)[0]
        / (1 - gamma)
        / stats.binom.pmf(k, pairs, gamma)
        for k in counts
    ]
    screen = Screen(0, pairs, gamma)
    expected = 1 - weights[0] / sum(weights)
    # What lies below the mean counts as at most 1 there.
    assert screen.doubt(17, counts[1:], counts[:0]) == pytest.approx(expected, rel=1e-3)
    assert np.exp(screen.log_weights[counts[:2]]) == pytest.approx(weights[:2], rel=1e-9)


def test_payloads_that_the_screen_left_out_are_doubted_as_chance_has_it():
    screen, left_out = Screen(6, 14, 0.5), np.array([2, 2, 3])
    against = sum(
        stats.binom.pmf(k, 14, 0.5) * np.exp(screen.log_weights[count + k] - screen.log_weights[15])
        for k in range(15)
        for count in left_out
    )
    expected = against / (1 + against)
    assert screen.doubt(15, left_out[:0], left_out) == pytest.approx(expected)


def test_very_long_texts_leave_no_doubt():
    screen = Screen(1000, 2000, 0.5)
    with np.errstate(over="raise"):
        assert screen.doubt(2000, np.array([1510]), np.array([500, 510])) < 1e-50


def test_a_stream_is_scored_as_its_texts_one_by_one(detector, key, tokenizer):
    texts = [marked_text(SPACE.key(key, 7), tokenizer, 40), plain_text(tokenizer, 40), "", "word"]
    assert list(detector.detect_many(iter(texts))) == [detector.detect(text) for text in texts]
    assert list(detector.detect_many([])) == []


def test_the_prompt_is_not_scored(detector):
    assert detector.detect([300, 301], prompt=[299]).pairs == 2


def test_tensors_give_the_same_as_arrays(detector, key, tokenizer, monkeypatch):
    monkeypatch.setattr(module, "SCREENED", 1)
    on_torch = PayloadDetector(key, SPACE, tokenizer, place=torch.from_numpy)
    texts = [marked_text(SPACE.key(key, 7), tokenizer, 60), plain_text(tokenizer, 90), "a word", ""]
    assert list(on_torch.detect_many(texts)) == list(detector.detect_many(texts))


def test_tokens_and_stretches_are_shown_for_the_payload_that_fits(detector, key, tokenizer):
    text = marked_text(SPACE.key(key, 7), tokenizer, 60)
    detection = detector.detect(text)
    assert {token.mark for token in detector.explain(text, detection)[1:]} == {"green"}
    [span] = detector.spans(text, detection)
    [alone] = Detector(SPACE.key(key, 7), tokenizer).spans(text)
    assert span.p_value == pytest.approx(1024 * alone.p_value, rel=1e-3)


def test_a_claim_is_one_of_the_payloads(detector, key):
    claimed = SPACE.key(key, 7).identity.to_dict()
    detector.check_claim(claimed)
    for other in (key.identity.to_dict(), {**claimed, "key_id": None}, {}):
        with pytest.raises(MismatchError, match="none of the 1,024 payloads"):
            detector.check_claim(other)
    with pytest.raises(MismatchError, match=r"gamma 0\.25"):
        detector.check_claim({**claimed, "gamma": 0.25})


def test_a_detection_holds_no_secret(detector, key, tokenizer):
    detection = detector.detect(marked_text(SPACE.key(key, 7), tokenizer, 60))
    assert pickle.loads(pickle.dumps(detection)) == detection
    for secret in (key.secret, SPACE.key(key, 7).secret):
        assert secret.reveal().hex() not in repr(detection)
        assert secret.reveal() not in pickle.dumps(detection)


def test_a_rate_that_is_none_and_another_tokenizer_are_refused(key, small_tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"lies in \(0, 1\)"):
        PayloadDetector(key, SPACE, fpr=0)
    with pytest.raises(MismatchError, match="not the one key"):
        PayloadDetector(key, SPACE, small_tokenizer)
    key.save(tmp_path / "my.key")
    assert len(PayloadDetector(tmp_path / "my.key", SPACE, load_tokenizer("embedded"))) == 1024


def ordinary_text(tokenizer, seed, words=60):
    """Words that follow each other as they do in ordinary text."""
    common = json.loads(LIST.read_text())["common"]
    random = np.random.default_rng(seed)
    text = [str(random.choice(list(common)))]
    while len(text) < words:
        rights = common.get(text[-1]) or common[str(random.choice(list(common)))]
        text.append(str(random.choice(list(rights))))
    return tokenizer.encode("".join(text))


def test_a_text_is_tested_against_what_the_best_payloads_key_expects_of_it(key, tokenizer):
    detector, above = PayloadDetector(key, SMALL, tokenizer), 0
    for seed in range(20):
        ids = ordinary_text(tokenizer, seed)
        found = detector.detect(ids)
        number = [SMALL.key(key, n).id for n in range(8)].index(found.key_id)
        alone = Detector(SMALL.key(key, number), tokenizer).detect(ids)
        assert (found.green, found.expected) == (alone.green, alone.expected)
        assert found.p_value == pytest.approx(1 - (1 - alone.p_value) ** 8, rel=1e-6)
        above += found.expected > 0.52
    assert above > 0


@pytest.mark.parametrize("screening", [False, True])
def test_ordinary_text_under_an_unlucky_key_is_not_taken_for_marked(
    tokenizer, screening, monkeypatch
):
    """Of 40 keys the one that makes common pairs greenest: tested against γ it would accuse."""
    monkeypatch.setattr(module, "SCREENED", 1 if screening else 4096)
    masters = [WatermarkKey(Secret(bytes([n]) * 16), 0.5, tokenizer.id) for n in range(40)]
    one = Payloads(["only"])

    def share(master):
        green = HashedGreenList(one.key(master, "only"), tokenizer.vocab_size)
        return key_fairness(green, tokenizer).share

    detector = PayloadDetector(max(masters, key=share), one, tokenizer, fpr=0.05)
    found = [detector.detect(ordinary_text(tokenizer, seed)) for seed in range(120)]
    assert np.mean([one.expected for one in found]) > 0.51
    hits = sum(one.p_value <= 0.05 for one in found)
    against_gamma = sum(stats.binom.sf(one.green - 1, one.pairs, 0.5) <= 0.05 for one in found)
    assert hits < against_gamma
    assert stats.binom.sf(hits - 1, 120, 0.05) > 1e-3
