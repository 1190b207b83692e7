"""What a detection says in words, for every verdict."""

import numpy as np
import pytest
from samples import marked_text, plain_text
from scipy import stats

from dllmark.detection.any_key import detect_any
from dllmark.detection.counting import count_pairs
from dllmark.detection.detector import Detector, Verdict
from dllmark.detection.payload import PayloadDetector
from dllmark.detection.statement import statement
from dllmark.detection.words import strength
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.relation.payload import Payloads


def test_a_small_p_value_is_never_called_weaker_than_a_larger_one():
    order = ["weak", "clear", "overwhelming"]
    levels = [order.index(strength(10.0**-digits)) for digits in range(30)]
    assert levels == sorted(levels) and set(levels) == {0, 1, 2}
    assert strength(0.0) == "overwhelming"


@pytest.fixture(scope="module")
def lucky(tokenizer):
    """A long text of random words that a key calls watermarked by chance."""
    ids = tokenizer.encode(plain_text(tokenizer, 3000, seed=5))
    secrets = (Secret(number.to_bytes(16, "big")) for number in range(500))
    keys = [WatermarkKey(secret, 0.5, tokenizer.id) for secret in secrets]
    lists = [HashedGreenList(key, tokenizer.vocab_size) for key in keys]
    green, pairs = count_pairs(lists, tokenizer, ids, np.array([len(ids)]))
    p_values = stats.binom.sf(green[:, 0] - 1, pairs[0], 0.5)
    by_luck = np.argmin(np.abs(p_values - 0.004))
    return Detector(keys[by_luck], tokenizer).detect(ids)


def test_chance_and_a_mark_are_not_called_alike(key, tokenizer, lucky):
    marked = Detector(key, tokenizer).detect(marked_text(key, tokenizer, 200, share=0.85))
    assert lucky.verdict is marked.verdict is Verdict.WATERMARKED
    assert lucky.conclusion == "watermarked (weak evidence, rate 1 %)"
    assert marked.conclusion == "watermarked (overwhelming evidence, rate 1 %)"
    by_chance, by_mark = statement(lucky), statement(marked)
    assert "The evidence is weak." in by_chance and "A rate of 1 % suits one text" in by_chance
    assert "this one has far fewer. Either a small part of it is marked" in by_chance
    assert "The evidence is overwhelming." in by_mark and "in 10^" in by_mark
    assert "far fewer" not in by_mark and "suits one text" not in by_mark


def test_a_hit_says_its_figures_and_what_it_does_not_prove(key, tokenizer):
    found = Detector(key, tokenizer).detect(marked_text(key, tokenizer, 60, share=0.8))
    said = statement(found, "customer-17")
    assert said.startswith(f"Finding: the text is consistent with the watermark of key {key.id}, c")
    assert f"of {found.pairs} distinct pairs" in said and f"{found.green} are green" in said
    assert "at a rate of 1 %" in said and "Figures: 1 key tried, best key" in said
    for limit in ("who wrote", "quotation", "forged", "is true", "not the probability"):
        assert limit in said


def test_a_miss_says_how_likely_a_find_was_and_what_it_does_not_prove(key, tokenizer, plain):
    found = Detector(key, tokenizer).detect(plain)
    said = statement(found, "customer-17")
    assert said.startswith(f"Finding: no watermark of key {key.id}, customer-17 was detected.")
    assert "99.9 % would be called watermarked at the rate of 1 %" in said
    assert "which is assumed, not measured" in said
    assert "does not prove: that a person wrote the text" in said
    measured = Detector(key, tokenizer, marked_share=0.6).detect(plain)
    assert "as was measured" in statement(measured)


@pytest.mark.parametrize("words", [0, 1, 32])
def test_a_short_text_says_that_it_is_no_sign_of_anything(key, tokenizer, words):
    found = Detector(key, tokenizer).detect(plain_text(tokenizer, words, seed=2))
    said = statement(found)
    assert said.startswith("Finding: the text is too short to tell.\n")
    assert f"For 95 % a text needs {found.pairs_needed} pairs." in said
    assert "a sign neither of a mark nor of its absence" in said
    assert "no pair of neighbouring tokens" in said or words == 32


def test_of_several_keys_all_are_counted(key, tokenizer, marked, plain):
    others = [WatermarkKey(Secret(bytes([n]) * 16), 0.5, tokenizer.id) for n in range(4)]
    hit, miss = (statement(detect_any([key, *others], text)) for text in (marked, plain))
    assert f"the watermark of key {key.id}." in hit
    for said in (hit, miss):
        assert "best of 5 keys, all of which were tried: this is taken into account" in said
    assert "no watermark of the 5 keys that were tried was detected" in miss


def test_a_payload_is_named_or_said_to_be_unclear(key, tokenizer, plain):
    space = Payloads(["acme", "globex", "initech"])
    detector = PayloadDetector(key, space, tokenizer)
    acme, globex = (
        marked_text(key.derive(name), tokenizer, 80, seed) for seed, name in enumerate(space.texts)
        if name != "initech"
    )  # fmt: skip
    named, unclear, none = (statement(detector.detect(t)) for t in (acme, acme + globex, plain))
    assert "Payload: acme. The probability that another payload" in named
    assert "Payload: unclear." in unclear
    assert "Payload" not in none and "the 3 payloads that were tried" in none


def test_rounding_never_turns_a_miss_into_certainty(key, tokenizer):
    ids = np.random.default_rng(0).integers(200, 9000, 5000)
    assert "99.9 % would be called" in statement(Detector(key, tokenizer).detect(ids))
