"""Several keys: the one that fits best, and no more false positives than with one."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from samples import marked_text, plain_text
from scipy import stats
from siphash24 import siphash24

from dllmark.detection.any_key import AnyKeyDetector, detect_any, key_tokenizers, load_detector
from dllmark.detection.detector import Detector
from dllmark.errors import InputError, MismatchError, TokenizerError
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.relation.tokenizer import EMBEDDED


@pytest.fixture(scope="module")
def keys(key, tokenizer):
    """Three keys, the fixed one last."""
    others = [WatermarkKey(Secret(bytes([number] * 16)), 0.5, tokenizer.id) for number in (1, 2)]
    return [*others, key]


@pytest.fixture(scope="module")
def any_key(keys, tokenizer):
    return AnyKeyDetector([Detector(key, tokenizer) for key in keys])


def test_a_stream_is_scored_as_its_texts_one_by_one(any_key, keys, tokenizer, texts):
    one_by_one = [detect_any(keys, text, tokenizer=tokenizer) for text in texts]
    assert list(any_key.detect_many(iter(texts))) == one_by_one
    assert [any_key.detect(text) for text in texts] == one_by_one


def test_the_verdict_is_of_the_key_that_marked_the_text(any_key, keys, key, tokenizer, marked):
    detection = any_key.detect(marked)
    alone = Detector(key, tokenizer).detect(marked)
    corrected = 3 * alone.p_value  # 1 - (1 - p)^3, of which p is too small to show the rest
    assert detection == replace(alone, p_value=pytest.approx(corrected, rel=1e-12), keys_tried=3)
    assert [token.mark for token in any_key.explain(marked, detection)[1:]] == ["green"] * 199


def test_stretches_are_corrected_for_the_number_of_keys(any_key, key, tokenizer):
    text = plain_text(tokenizer, 100) + marked_text(key, tokenizer, 60) + plain_text(tokenizer, 100)
    [span] = any_key.spans(text, any_key.detect(text))
    [alone] = Detector(key, tokenizer).spans(text)
    assert span == replace(alone, p_value=pytest.approx(1 - (1 - alone.p_value) ** 3, rel=1e-6))


def test_a_stretch_that_is_only_just_marked_needs_one_key(key, keys, tokenizer):
    """Its p-value lies between a third of the rate and the rate."""
    text = marked_text(key, tokenizer, 60)
    [span] = Detector(key, tokenizer).spans(text)
    rate = 2 * span.p_value
    for tried, count in ((keys[2:], 1), (keys, 0)):
        detector = AnyKeyDetector([Detector(one, tokenizer, fpr=rate) for one in tried])
        named = replace(detector.detect(text), key_id=key.id)
        assert len(detector.spans(text, named)) == count


def slow_best(keys, tokenizer, ids):
    """Return key and counts of the best key, by a loop over keys, pairs and hashes."""
    found = []
    for key in keys:
        pairs = sorted({pair for pair in pairwise(ids) if tokenizer.scored[list(pair)].all()})
        limit = int(Fraction(key.gamma) * 2**64)
        digests = [
            siphash24((left << 32 | right).to_bytes(8, "little"), key=key.secret.reveal()).digest()
            for left, right in pairs
        ]
        green = sum(int.from_bytes(digest, "little") < limit for digest in digests)
        found.append((stats.binom.sf(green - 1, len(pairs), key.gamma), key.id, green, len(pairs)))
    return list(min(found, key=lambda one: one[0])[1:])


@pytest.mark.parametrize("length", [0, 1, 2, 40, 199])
def test_many_keys_at_once_give_what_a_loop_over_them_gives(tokenizer, length):
    rng = np.random.default_rng(length)
    keys = [
        WatermarkKey(Secret(rng.bytes(16)), gamma, tokenizer.id)
        for gamma in (0.5, 0.5, 0.25, 0.5, 0.7)
        for _ in range(12)
    ]
    detector = AnyKeyDetector([Detector(key, tokenizer) for key in keys])
    for _ in range(3):
        ids = rng.integers(200, 260, length).tolist()
        detection = detector.detect(ids)
        best = slow_best(keys, tokenizer, ids)
        assert [detection.key_id, detection.green, detection.pairs] == best
        one = stats.binom.sf(detection.green - 1, detection.pairs, detection.expected)
        assert detection.p_value == pytest.approx(1 - (1 - one) ** len(keys), rel=1e-9)
        alone = Detector(next(key for key in keys if key.id == best[0]), tokenizer).detect(ids)
        assert detection.expected == alone.expected >= detection.gamma


def test_a_part_of_the_texts_at_a_time_gives_the_same(any_key, texts, monkeypatch):
    whole = list(any_key.detect_many([*texts, "", "word"]))
    monkeypatch.setattr("dllmark.detection.family.MOST_SCORES", 7)
    assert list(any_key.detect_many([*texts, "", "word"])) == whole


def test_of_texts_by_nobody_no_more_than_the_stated_share_is_taken_for_any_key(tokenizer):
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        keys = [WatermarkKey(Secret(rng.bytes(16)), 0.5, tokenizer.id) for _ in range(20)]
        detector = AnyKeyDetector([Detector(key, tokenizer, fpr=0.2) for key in keys])
        hits += detector.detect(rng.integers(200, 9000, 120)).verdict.value == "watermarked"
    # A count is a whole number, so the rate that is reached lies between 0.12 and 0.2 here.
    assert stats.binom.sf(hits - 1, 300, 0.2) > 1e-3
    assert stats.binom.cdf(hits, 300, 0.1) > 1e-3


def test_a_key_given_twice_is_tried_once(key, tokenizer, marked):
    twice = [key, replace(key, note="a copy")]
    assert AnyKeyDetector([Detector(one, tokenizer) for one in twice]).detect(marked) == Detector(
        key, tokenizer
    ).detect(marked)


def test_a_claim_is_one_of_the_keys(any_key, keys):
    for key in keys:
        any_key.check_claim({**key.identity.to_dict(), "more": 1})
    with pytest.raises(MismatchError, match="marked with key_id '00', or otherwise than these 3"):
        any_key.check_claim({**keys[0].identity.to_dict(), "key_id": "00"})
    with pytest.raises(MismatchError, match="these 3 keys"):
        any_key.check_claim({**keys[0].identity.to_dict(), "gamma": 0.25})


def test_no_key_is_refused():
    with pytest.raises(InputError, match="at least one key"):
        AnyKeyDetector([])


def test_keys_of_two_tokenizers_are_tried_together(key, small_key, small_tokenizer, tmp_path):
    keys = [key, small_key]
    (tmp_path / "small.json").write_text(small_tokenizer.definition())
    detector = load_detector(keys, [str(tmp_path / "small.json")])
    assert detector.detect("w1 w2 w3").keys_tried == 2
    with pytest.raises(TokenizerError, match="say with --tokenizer where to"):
        load_detector(keys)


def test_a_tokenizer_that_fits_no_key_is_refused(key, small_key, small_tokenizer):
    with pytest.raises(MismatchError, match="their fingerprints differ"):
        key_tokenizers([key], [small_tokenizer])
    moved = replace(small_key, tokenizer=replace(small_key.tokenizer, name=str(EMBEDDED)))
    with pytest.raises(MismatchError, match="their fingerprints differ"):
        key_tokenizers([moved])
