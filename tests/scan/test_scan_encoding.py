"""The fast way to token ids gives the ids of the tokenizer a key belongs to, on any text."""

import json
import random
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.relation.tokenizer import PIECE, Tokenizer
from dllmark.scan import encoding
from dllmark.scan.encoding import DIFFERENT, PROVED, Encoder, fast_tokenizer

pytest.importorskip("fastokens", reason="pip install 'dllmark[scan]'")


def changed(tokenizer, change):
    """Return the tokenizer that a change of its definition makes."""
    record = json.loads(tokenizer.definition())
    change(record)
    return Tokenizer(json.dumps(record), "changed")


@pytest.fixture(scope="module", params=["gpt2", "qwen2", "qwen2, not normalised"])
def encoder(request, tokenizer):
    """Every proved way of cutting text into words, over the embedded vocabulary: it has GPT-2's."""

    def cut_like_qwen2(record):
        split, byte_level = record["pre_tokenizer"]["pretokenizers"]
        [split["pattern"]["Regex"]] = PROVED - {split["pattern"]["Regex"]}
        byte_level["trim_offsets"] = False
        if request.param == "qwen2":
            record["normalizer"] = {"type": "NFC"}

    if request.param == "gpt2":
        return Encoder(tokenizer)
    return Encoder(changed(tokenizer, cut_like_qwen2))


def expected(encoder, texts):
    return [ids.tolist() for ids in encoder.tokenizer.encode_many(texts)]


def split(ids, lengths):
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def assert_same(encoder, texts):
    assert encoder.fast is not None
    assert split(*encoder.encode(texts)) == expected(encoder, texts)


def in_context(character):
    """Put a character behind, before and between letters, digits, spaces and apostrophes."""
    c = character
    return f"a{c}b 1{c}2 {c} {c}{c}.{c}'s{c}\n{c}\t{c}  {c}’t{c}!{c}'S{c}"


def assigned():
    """Yield every character there is, but of scripts with thousands of like ones only some."""
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        uniform = 0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xD7A4 or code >= 0x10000
        if category not in ("Cs", "Co", "Cn") and (code % 64 == 0 or not uniform):
            yield chr(code)


def test_every_character_in_every_context_gives_the_same_ids(encoder):
    texts = [in_context(character) for character in assigned()]
    assert len(texts) > 18_000
    for start in range(0, len(texts), 1000):
        assert_same(encoder, texts[start : start + 1000])


def test_characters_outside_the_first_plane_give_the_same_ids(encoder):
    codes = random.Random(0).sample(range(0x10000, 0x110000), 3000)
    assert_same(encoder, [in_context(chr(code)) for code in codes])


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=5))
def test_random_text_gives_the_same_ids(encoder, texts):
    assert_same(encoder, ["", *texts])


PARTS = [
    "'s", "’t", "don't", "DON'T", "'LL", "<|endoftext|>", "<|im_end|>", "  ", "\r\n", "\t", "\xa0",
    "12", "é", "e\u0301", "ﬁ", "中文", "한국", "🙂", "👩\u200d👧", "\u200b", "²", "Ⅷ", "_", "...",
    DIFFERENT,
]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS) | st.text("abc '.", max_size=4), max_size=30))
def test_awkward_text_gives_the_same_ids(encoder, parts):
    assert_same(encoder, ["".join(parts)])


def test_a_text_that_is_cut_into_pieces_gives_the_same_ids(encoder):
    long = "some words and 12 numbers " * (PIECE // 20)
    assert len(long) > PIECE
    assert_same(encoder, ["before", long, "after"])


def test_words_of_any_length_give_the_same_ids(encoder):
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=k)) for k in range(1, 300)]
    assert_same(encoder, [" ".join(words), *words])


@pytest.mark.parametrize(
    "change",
    [
        lambda split, whole: split.update(behavior="Removed"),
        lambda split, whole: split.update(pattern={"Regex": r"\w+|\s+"}),
        lambda split, whole: split.update(pattern={"String": " "}),
        lambda split, whole: whole.update(pre_tokenizer=None),
        lambda split, whole: whole.update(normalizer={"type": "Lowercase"}),
        lambda split, whole: whole["pre_tokenizer"]["pretokenizers"].pop(),
    ],
)
def test_a_tokenizer_that_is_not_proved_is_left_as_it_is(tokenizer, change):
    other = changed(
        tokenizer, lambda whole: change(whole["pre_tokenizer"]["pretokenizers"][0], whole)
    )
    encoder = Encoder(other)
    assert encoder.fast is None
    texts = ["Some words, it's 12.", ""]
    assert split(*encoder.encode(texts)) == expected(encoder, texts)


def test_without_the_fast_library_the_ids_are_the_same(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert fast_tokenizer(tokenizer.definition()) is None
    slow = Encoder(tokenizer)
    monkeypatch.undo()
    texts = ["Some words, it's 12.", "more"]
    assert split(*slow.encode(texts)) == split(*Encoder(tokenizer).encode(texts))


def test_no_texts_are_no_ids(encoder):
    ids, lengths = encoder.encode([])
    assert (len(ids), len(lengths)) == (0, 0)


def test_a_worker_keeps_to_one_thread(monkeypatch):
    monkeypatch.delenv("RAYON_NUM_THREADS")
    encoding.one_thread()
    assert encoding.os.environ["RAYON_NUM_THREADS"] == "1"
