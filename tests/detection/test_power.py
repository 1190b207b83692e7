"""A miss is called one only where a marked text would have been found."""

import numpy as np
import pytest
from samples import marked_text, plain_text
from scipy import stats

from dllmark.detection.any_key import detect_any
from dllmark.detection.detector import Detector, Verdict
from dllmark.detection.payload import PayloadDetector
from dllmark.detection.power import marked_shares, pairs_needed, powers
from dllmark.errors import InputError
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.relation.payload import Payloads


def scipy_power(pairs, expected, fpr, share):
    """The chance that a marked text reaches the rate, by looking at all counts."""
    tails = stats.binom.sf(np.arange(-1, pairs + 1), pairs, expected)  # of 0 green to one too many
    return stats.binom.sf(np.argmax(tails <= fpr) - 1, pairs, share)


@pytest.mark.parametrize(("expected", "fpr"), [(0.5, 0.01), (0.55, 1e-6), (0.25, 0.001)])
def test_power_is_the_chance_that_a_marked_text_reaches_the_rate(expected, fpr):
    share = float(marked_shares(expected, 1.0))
    assert np.log(share / (1 - share)) - np.log(expected / (1 - expected)) == pytest.approx(1.0)
    for pairs, power in enumerate(powers(np.arange(100), expected, fpr, 1.0)):
        exact = scipy_power(pairs, expected, fpr, share)
        assert power == pytest.approx(min(exact, 0.999), abs=1e-12)


def test_power_beyond_all_doubt_is_not_called_certainty():
    assert powers([5000, 10**7], 0.5, 0.01, 1.0).tolist() == [0.999, 0.999]


@pytest.mark.parametrize(("fpr", "strength"), [(0.01, 1.0), (1e-6, 1.0), (0.01, 0.4)])
def test_the_pairs_needed_are_the_first_that_reach_the_power_asked(fpr, strength):
    [needed] = pairs_needed([0.5], fpr, strength).tolist()
    share = float(marked_shares(0.5, strength))
    enough = [n for n in range(1, needed + 1) if scipy_power(n, 0.5, fpr, share) >= 0.95]
    assert enough == [needed]


def test_a_mark_too_weak_for_any_length_does_not_make_every_text_too_short():
    assert pairs_needed(0.5, 0.01, 0.001) == 1 << 14


def test_a_marked_text_of_32_tokens_that_is_missed_is_too_short_to_tell(key, tokenizer):
    """And one that is found is found; both happen."""
    detector = Detector(key, tokenizer)
    texts = [marked_text(key, tokenizer, 32, seed, share=0.73) for seed in range(40)]
    found = [detector.detect(text) for text in texts]
    assert {one.verdict for one in found} == {Verdict.TOO_SHORT, Verdict.WATERMARKED}
    for one in found:
        assert 0.4 < one.power < 0.6 < 0.95 and one.pairs < one.pairs_needed
    hits = sum(one.verdict is Verdict.WATERMARKED for one in found)
    power = np.mean([one.power for one in found])
    assert 1e-3 < stats.binom.cdf(hits, 40, power) < 1 - 1e-3


@pytest.mark.parametrize("words", [30, 60, 90, 200])
def test_a_miss_is_not_detected_only_from_the_length_that_is_needed(key, tokenizer, words):
    for seed in range(10):
        found = Detector(key, tokenizer).detect(plain_text(tokenizer, words, seed))
        if found.verdict is not Verdict.WATERMARKED:
            short = found.verdict is Verdict.TOO_SHORT
            assert short is (found.pairs < found.pairs_needed) is (words < 75)
            assert not short or found.power < 0.95


def test_more_keys_or_payloads_need_a_longer_text(key, tokenizer):
    others = [WatermarkKey(Secret(bytes([n]) * 16), 0.5, tokenizer.id) for n in range(50)]
    text = plain_text(tokenizer, 90, seed=1)
    alone = Detector(key, tokenizer).detect(text)
    of_many = detect_any([key, *others], text)
    of_payloads = PayloadDetector(key, Payloads(8), tokenizer).detect(text)
    assert alone.verdict is Verdict.NOT_DETECTED
    assert of_many.verdict is of_payloads.verdict is Verdict.TOO_SHORT
    assert alone.pairs_needed < of_many.pairs_needed < of_payloads.pairs_needed
    assert alone.power > of_many.power > of_payloads.power


def test_a_measured_share_takes_the_place_of_the_assumption(key, tokenizer):
    text = plain_text(tokenizer, 50, seed=1)
    usual, strong = (Detector(key, tokenizer, marked_share=share) for share in (None, 0.9))
    assert usual.detect(text).verdict is Verdict.TOO_SHORT
    found = strong.detect(text)
    assert found.verdict is Verdict.NOT_DETECTED
    assert found.expected_if_marked >= 0.9 and found.power > 0.99
    assert found.p_value == usual.detect(text).p_value


@pytest.mark.parametrize("share", [0.5, 0.3, 1.1, float("nan")])
def test_a_marked_share_that_is_no_mark_is_refused(key, share):
    with pytest.raises(InputError, match=r"lies above gamma, 0\.5, and is at most 1"):
        Detector(key, marked_share=share)
