"""Detection counts what it says, its error rate is what it says, and it finds what was marked."""

import collections
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import marked_text, plain_text
from scipy import stats

from dllmark.detection.any_key import AnyKeyDetector, detect_any
from dllmark.detection.counting import count_pairs
from dllmark.detection.detector import Detector, Verdict
from dllmark.detection.stats import binomial_tail
from dllmark.errors import InputError, MismatchError, TokenizerError
from dllmark.relation.greenlist import HashedGreenList, ReferenceBitmap
from dllmark.relation.key import Secret, WatermarkKey

ids_lists = st.lists(st.integers(0, 34), max_size=80)


def naive_counts(key, tokenizer, ids, scoring):
    """Count green pairs one by one, as the paper's equation and our rules say."""
    green = HashedGreenList(key, tokenizer.vocab_size)
    special = {0, 1, 2}
    pairs = [
        (left, right)
        for left, right in pairwise(ids)
        if left not in special and right not in special
    ]
    if scoring == "unique":
        pairs = list(dict.fromkeys(pairs))
    colours = [bool(green.pairs(np.array([a]), np.array([b]))[0]) for a, b in pairs]
    return len(pairs), sum(colours)


@given(ids=ids_lists)
@pytest.mark.parametrize("scoring", ["unique", "all"])
def test_it_counts_each_scored_pair(small_key, small_tokenizer, ids, scoring):
    detection = Detector(small_key, small_tokenizer, scoring=scoring).detect(ids)
    pairs, green = naive_counts(small_key, small_tokenizer, ids, scoring)
    assert (detection.pairs, detection.green) == (pairs, green)
    assert detection.p_value == pytest.approx(stats.binom.sf(green - 1, pairs, 0.5))
    assert detection.green_fraction == (green / pairs if pairs else 0)


@given(texts=st.lists(ids_lists, max_size=12))
def test_many_at_once_are_scored_like_one_by_one(small_key, small_tokenizer, texts):
    detector = Detector(small_key, small_tokenizer)
    assert list(detector.detect_many(texts)) == [detector.detect(text) for text in texts]


def test_a_stream_is_read_only_as_far_as_it_is_scored(key, tokenizer):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "some words that never end"

    next(Detector(key, tokenizer).detect_many(endless()))
    assert taken < 5000


def test_the_prompt_is_context_and_is_not_scored(small_key, small_tokenizer):
    detector = Detector(small_key, small_tokenizer)
    prompt, text = [5, 6, 7], [8, 9, 10]
    assert detector.detect(text, prompt=prompt).pairs == 3
    assert detector.detect(text, prompt=prompt) == detector.detect([7, *text])
    assert detector.detect(text, prompt=[]) == detector.detect(text)


def test_marked_text_is_detected_by_its_key_and_no_other(key, tokenizer):
    text = marked_text(key, tokenizer, words=100)
    other = WatermarkKey(Secret(b"another test key"), 0.5, tokenizer.id)
    assert Detector(key, fpr=1e-6).detect(text).verdict is Verdict.WATERMARKED
    assert Detector(other).detect(text).verdict is Verdict.NOT_DETECTED


def test_plain_text_is_not_detected(key, tokenizer):
    text = plain_text(tokenizer, 300, seed=1)
    assert Detector(key).detect(text).verdict is Verdict.NOT_DETECTED


def null_p_values(tokenizer, text, keys):
    """The p-values of one text under keys that did not mark it, all of one γ."""
    lists = [HashedGreenList(key, tokenizer.vocab_size) for key in keys]
    green, pairs = count_pairs(lists, tokenizer, text, np.array([len(text)]))
    p_values = binomial_tail(np.concatenate(green), pairs, keys[0].gamma)
    found = [Detector(key, tokenizer).detect(text) for key in keys[:20]]
    assert all(one.p_value >= p for one, p in zip(found, p_values, strict=False))
    return p_values


@pytest.mark.parametrize("gamma", [0.25, 0.5])
@pytest.mark.parametrize("kind", ["random", "repetitive"])
def test_under_thousands_of_wrong_keys_the_rate_is_at_most_the_stated_one(tokenizer, kind, gamma):
    rng = np.random.default_rng(3)
    text = rng.integers(5, tokenizer.vocab_size, 250)
    if kind == "repetitive":  # sixty words over and over, and one word alone over and over
        text = np.concatenate([np.tile(text[:60], 4), np.full(50, text[0])])
    secrets = np.random.default_rng(11)
    keys = [WatermarkKey(Secret(secrets.bytes(16)), gamma, tokenizer.id) for _ in range(4000)]
    p_values = null_p_values(tokenizer, text, keys)
    for rate in (0.01, 0.001):
        hits = (p_values <= rate).sum()
        assert stats.binom.sf(hits - 1, len(keys), rate) > 1e-3, (rate, hits)
    assert (p_values <= 0.01).any()


def test_counting_every_pair_of_a_repetitive_text_is_not_safe(tokenizer):
    """Why `unique` is the default."""
    rng = np.random.default_rng(3)
    text = np.tile(rng.integers(5, tokenizer.vocab_size, 10), 25)
    hits = 0
    for _ in range(300):
        key = WatermarkKey(Secret(rng.bytes(16)), 0.5, tokenizer.id)
        hits += Detector(key, tokenizer, scoring="all").detect(text).p_value <= 0.01
    assert hits > 30


def test_explanation_names_every_token_and_adds_up(key, tokenizer):
    text = "The sky is blue, the sky is blue. <|endoftext|>Ünïcödé 🙂 works."
    detector = Detector(key, tokenizer)
    tokens, detection = detector.explain(text), detector.detect(text)
    marks = collections.Counter(token.mark for token in tokens)
    assert marks["green"] == detection.green
    assert marks["green"] + marks["red"] == detection.pairs
    assert tokens[0].mark == "not scored"
    assert all(token.text == text[token.start : token.end] for token in tokens)
    special = next(token for token in tokens if token.text == "<|endoftext|>")
    assert special.mark == "not scored"
    assert {token.end for token in tokens} >= {len(text)}


def test_explanation_with_a_prompt_scores_the_first_token(key, tokenizer):
    detector = Detector(key, tokenizer)
    tokens = detector.explain(" blue skies", prompt="I see")
    assert tokens[0].mark != "not scored"
    scored = sum(token.mark != "not scored" for token in tokens)
    assert scored == detector.detect(" blue skies", prompt="I see").pairs


def test_explanation_of_nothing_is_nothing(key, tokenizer):
    assert Detector(key, tokenizer).explain("") == []
    assert Detector(key, tokenizer).spans("") == []


@pytest.mark.parametrize("seed", range(5))
def test_a_marked_stretch_is_found_inside_a_longer_text(key, tokenizer, seed):
    before = plain_text(tokenizer, 1200, seed=2 * seed)
    marked = marked_text(key, tokenizer, words=150, seed=seed, share=0.85)
    after = plain_text(tokenizer, 800, seed=2 * seed + 1)
    start, end = len(before), len(before) + len(marked)
    [span] = Detector(key, tokenizer).spans(before + marked + after)
    common = min(end, span.end) - max(start, span.start)
    assert common >= 0.8 * (end - start)
    assert common >= 0.8 * (span.end - span.start)
    assert span.p_value < 0.01


def test_several_keys_are_tried_at_a_price(key, tokenizer):
    others = [WatermarkKey(Secret(bytes([n]) * 16), 0.5, tokenizer.id) for n in range(9)]
    text = marked_text(key, tokenizer, words=60)
    alone = Detector(key, tokenizer).detect(text)
    detection = detect_any([*others, key], text, tokenizer=tokenizer)
    assert detection.key_id == key.id
    assert detection.keys_tried == 10
    assert detection.p_value == pytest.approx(10 * alone.p_value)
    assert detection.verdict is Verdict.WATERMARKED
    with pytest.raises(InputError, match="at least one key"):
        detect_any([], text)


def test_text_marked_by_the_reference_implementation_is_detected(tmp_path, small_tokenizer):
    rng = np.random.default_rng(0)
    bits = rng.random((35, 35)) < 0.5
    bits[:, 3] = bits[3, :] = True  # so that a green chain never ends
    path = tmp_path / "bitmap_v35_r50_k7.bin"
    np.packbits(bits.reshape(-1)).tofile(path)
    chain = [3]
    for _ in range(60):
        chain.append(int(rng.choice(3 + np.flatnonzero(bits[chain[-1], 3:]))))
    detection = Detector(ReferenceBitmap(path), small_tokenizer).detect(chain)
    assert detection.verdict is Verdict.WATERMARKED
    assert detection.green == detection.pairs


ENDS = ["\n", "\r\n", " ", "\n\n", " \t\n", "\u00a0\u2028"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("scoring", ["unique", "all"])
def test_white_space_at_the_end_of_a_text_is_not_scored(key, tokenizer, end, scoring):
    detector = Detector(key, tokenizer, scoring=scoring)
    text = marked_text(key, tokenizer, 30) + "."
    alone = detector.detect(text)
    assert alone.pairs == 30
    assert detector.detect(text + end) == alone
    assert list(detector.detect_many([text + end, text])) == [alone, alone]
    assert detect_any([key], text + end, scoring=scoring) == alone
    assert detector.explain(text + end) == detector.explain(text)
    assert detector.spans(text + end) == detector.spans(text)


def test_white_space_elsewhere_counts_and_ids_are_scored_as_they_are(key, tokenizer):
    detector = Detector(key, tokenizer)
    assert detector.detect("\n one\n two").pairs == len(tokenizer.encode("\n one\n two")) - 1
    ids = tokenizer.encode("one two\n")
    assert detector.detect(ids).pairs == len(ids) - 1 == detector.detect("one two").pairs + 1
    prompt = "A question?\n"
    assert detector.detect("one two", prompt=prompt) == detector.detect(
        tokenizer.encode("one two"), prompt=tokenizer.encode(prompt)
    )


def test_colours_say_of_each_pair_what_the_detection_counts(key, tokenizer):
    ids = tokenizer.encode("The sky is blue, the sky is blue. <|mask|> The sky")
    for scoring in ("unique", "all"):
        detector = Detector(key, tokenizer, scoring=scoring)
        scored, green = detector.colours(ids.tolist())
        assert len(scored) == len(green) == len(ids) - 1
        detection = detector.detect(ids)
        assert (scored.sum(), (scored & green).sum()) == (detection.pairs, detection.green)
        pairs = [
            pair for pair, counts in zip(pairwise(ids.tolist()), scored, strict=True) if counts
        ]
        assert (len(set(pairs)) == len(pairs)) is (scoring == "unique")
        assert not any(mask in pair for pair in pairs for mask in tokenizer.encode("<|mask|>"))


def test_ids_may_be_a_list_an_array_or_a_tensor(small_key, small_tokenizer):
    detector = Detector(small_key, small_tokenizer)
    expected = detector.detect([5, 6, 7])
    for kind in (np.uint8, np.int32, np.uint64):
        assert detector.detect(np.array([5, 6, 7], kind)) == expected
    assert detector.detect(torch.tensor([5, 6, 7])) == expected
    assert list(detector.detect_many(torch.tensor([[5, 6, 7]]))) == [expected]
    assert detector.detect((5, 6, 7)) == detector.detect(range(5, 8)) == expected
    assert detector.detect([]).pairs == 0


NO_IDS = [
    7, None, b"w1 w2", bytearray(b"ab"), memoryview(b"ab"), {5: 6}, [[5, 6]], [[5], [6, 7]], [0.5],
    ["w1"], [None], [2**70], [5, None], np.zeros((2, 2), int), np.array([True, False]),
    np.array([5.0]), np.array(5), torch.tensor(5), torch.tensor([[5, 6]]), torch.tensor([5.0]),
    torch.tensor([True]), torch.tensor([5.0], dtype=torch.bfloat16),
    torch.tensor([5.0], requires_grad=True), iter([5, 6]),
]  # fmt: skip


@pytest.mark.parametrize(
    "given", NO_IDS, ids=lambda given: f"{type(given).__name__} {given!r}".split(" at 0x")[0]
)
def test_what_is_neither_text_nor_ids_is_a_clear_error(small_key, small_tokenizer, given):
    detector = Detector(small_key, small_tokenizer)
    calls = [
        lambda: detector.detect(given),
        lambda: list(detector.detect_many([given])),
        lambda: detector.colours(given),
        lambda: detector.detect([5], prompt=given) if given is not None else detector.detect(given),
    ]
    for call in calls:
        with pytest.raises(InputError, match="one flat sequence of integers; got"):
            call()
    for explain in (detector.explain, detector.spans):
        with pytest.raises(InputError, match="give the text itself"):
            explain(given)


@pytest.mark.parametrize("id_", [-1, 35, 2**31, 2**63, 2**64 - 1])
def test_an_id_outside_the_vocabulary_is_named(small_key, small_tokenizer, id_):
    detector = Detector(small_key, small_tokenizer)
    for ids in ([id_], np.array([id_])):
        with pytest.raises(TokenizerError, match=f"id {id_} is outside the vocabulary of small"):
            detector.detect(ids)


@pytest.mark.parametrize("texts", ["a single text", b"bytes", None, 7])
def test_one_text_in_place_of_many_is_refused_at_once(key, tokenizer, texts):
    with pytest.raises(InputError, match=r"texts is a list of texts: put a single one in \[ \]"):
        Detector(key, tokenizer).detect_many(texts)
    with pytest.raises(InputError, match=r"put a single one in \[ \]"):
        AnyKeyDetector([Detector(key, tokenizer)]).detect_many(texts)


def test_what_cannot_be_scored_is_refused_with_a_reason(key, tokenizer, small_tokenizer):
    with pytest.raises(InputError, match="surrogates"):
        Detector(key, tokenizer).detect("\ud800")
    with pytest.raises(MismatchError, match="fingerprints differ"):
        Detector(key, small_tokenizer)
    with pytest.raises(InputError, match="rate"):
        Detector(key, tokenizer, fpr=0)
    with pytest.raises(InputError, match="'unique' or 'all'"):
        Detector(key, tokenizer, scoring="some")


def test_a_result_holds_no_secret(key, tokenizer):
    detection = Detector(key, tokenizer).detect("some text to look at")
    secret = key.secret.reveal()
    assert secret not in pickle.dumps(detection)
    assert secret.hex() not in repr(detection) + str(detection.to_dict())
    assert pickle.loads(pickle.dumps(detection)) == detection
