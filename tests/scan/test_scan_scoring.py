"""A block of documents gets the verdicts that each document gets alone."""

from itertools import pairwise

import numpy as np
import pytest
from samples import marked_text

from dllmark.detection.any_key import detect_any
from dllmark.detection.counting import count_pairs
from dllmark.errors import InputError, MismatchError, TokenizerError
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import Secret, TokenizerId, WatermarkKey
from dllmark.relation.tokenizer import EMBEDDED
from dllmark.scan.scoring import Scorer


@pytest.fixture(scope="module")
def keys(key, tokenizer):
    """Three keys, of which one has another γ."""
    return [
        key,
        WatermarkKey(Secret(b"another key, yes"), 0.5, tokenizer.id),
        WatermarkKey(Secret(b"a third one here"), 0.25, tokenizer.id),
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("fpr", [0.5, 0.01, 1e-6])
def test_scores_are_those_of_the_detector(keys, texts, tokenizer, count, fpr):
    all_texts = [
        *texts,
        "",
        "word",
        "a few words\n",
        marked_text(keys[2], tokenizer, 60, share=0.7),
    ]
    scores = Scorer(keys[:count], fpr).score(all_texts)
    for at, text in enumerate(all_texts):
        alone = detect_any(keys[:count], text, tokenizer=tokenizer, fpr=fpr)
        scored = scores.verdict[at], scores.pairs[at], scores.key_id[at]
        assert scored == (alone.verdict.value, alone.pairs, alone.key_id)
        assert scores.z[at] == pytest.approx(alone.z)
        assert scores.p_value[at] == pytest.approx(alone.p_value)


def test_keys_of_different_tokenizers_are_tried_together(key, small_key, small_tokenizer, texts):
    scores = Scorer([small_key, key], 1e-6, [small_tokenizer]).score([texts[0], texts[1]])
    assert scores.verdict.tolist() == ["watermarked", "too short"]
    assert scores.key_id[0] == key.id


def test_a_key_given_twice_is_tried_once(key, texts):
    once, twice = Scorer([key], 0.01).score(texts), Scorer([key, key], 0.01).score(texts)
    assert np.array_equal(once.p_value, twice.p_value)


def test_a_block_may_be_empty(key):
    assert len(Scorer([key], 0.01).score([]).verdict) == 0


@pytest.mark.parametrize("scoring", ["unique", "all"])
def test_pairs_are_counted_as_a_loop_counts_them(key, tokenizer, scoring):
    rng = np.random.default_rng(0)
    texts = [rng.choice([0, 300, 301, 302, 303], rng.integers(0, 30)) for _ in range(50)]
    green = HashedGreenList(key, tokenizer.vocab_size)
    lengths = np.array([len(text) for text in texts])
    unique = scoring == "unique"
    joined = np.concatenate(texts)
    [counted], pairs = count_pairs([green], tokenizer, joined, lengths, unique=unique)
    for at, text in enumerate(texts):
        scored = [pair for pair in pairwise(text) if 0 not in pair]
        scored = sorted(set(scored)) if scoring == "unique" else scored
        colours = [bool(green.pairs(np.array([a]), np.array([b]))[0]) for a, b in scored]
        assert (counted[at], pairs[at]) == (sum(colours), len(colours))


def test_what_is_wrong_with_a_key_is_said_before_the_work(key, tokenizer):
    gone = WatermarkKey(key.secret, 0.5, TokenizerId("/gone/tokenizer.json", "sha256:0"))
    with pytest.raises(TokenizerError, match="say with --tokenizer where to"):
        Scorer([gone], 0.01)
    other = WatermarkKey(key.secret, 0.5, TokenizerId(str(EMBEDDED), "sha256:0"))
    with pytest.raises(MismatchError, match="not the one key"):
        Scorer([other], 0.01)
    with pytest.raises(InputError, match="at least one key"):
        Scorer([], 0.01)
    with pytest.raises(InputError, match=r"lies in \(0, 1\)"):
        Scorer([key], 1.0)
