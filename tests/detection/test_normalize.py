"""Normalising undoes what a reader cannot see, and leaves alone what writers mean."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.attacks.characters import homoglyphs, zero_width
from dllmark.detection.normalize import LOOKALIKES, ZERO_WIDTH, normalize

TRICKS = {
    "a zero-width space": ("wo\u200brd", "word"),
    "joiners in Latin words": ("w\u200do\u200cr\ufe0fd", "word"),
    "joiners behind a space": ("a \u200d\u200cb", "a b"),
    "joiners behind a quote and at the start": ("\u200d“\u200da”\ufe0f", "“a”"),
    "a soft hyphen": ("hyphen\u00adated", "hyphenated"),
    "direction marks": ("\u202eabc\u202c\u200f", "abc"),
    "hidden ASCII": ("word\U000e0068\U000e0069", "word"),
    "a byte order mark": ("\ufeffText", "Text"),
    "Cyrillic in a Latin word": ("sр\u0430се", "space"),
    "Greek in a Latin word": ("Τhe ΡΑth", "The PAth"),
    "a lookalike beside an accented letter": ("n\u0430ïve", "naïve"),
    "a lookalike with an invisible behind it": ("c\u0430\u200dt", "cat"),
    "a lookalike, an invisible and an accent": ("caf\u0435\u200b\u0301", "café"),
    "no-break and thin spaces": ("a\u00a0b\u2009c\u202fd", "a b c d"),
    "line separators": ("a\u2028b\u2029c\u0085d", "a\nb\nc\nd"),
    "another typeface": ("𝐇𝑒𝓁𝕝𝚘 𝟙", "Hello 1"),
    "full-width letters": ("Ｈｅｌｌｏ", "Hello"),
    "ligatures": ("ﬁne aﬄuent", "fine affluent"),
    "letters for numbers": ("Ⅼist ⅰn", "List in"),
    "accents apart": ("cafe\u0301", "café"),
}

MEANT = {
    "Russian": "Привет, СССР! А он сор",
    "Greek": "Καλημέρα. ΑΒΕ",
    "a Latin name with a Russian ending": "COVIDом",
    "formulas": "ΔH, hν, kΩ, μm, αx, ρg, x², ℝ and 25 ℃",
    "Chinese": "２０２３年，你好！（一）\u3000第二",
    "Persian": "می\u200cخواهم",
    "Hindi": "क्\u200dष",
    "emoji": "👩\u200d💻 ❤\ufe0f 1\ufe0f\u20e3 ©\ufe0f 🏴\U000e0067\U000e0062\U000e007f",
    "quotes and dashes": "“It’s” – or—so…",
    "signs": "№ 5 ™ ½ € §",
    "accents": "Žluťoučký kůň, naïve façade",
}


@pytest.mark.parametrize(("tricked", "plain"), TRICKS.values(), ids=TRICKS)
def test_a_trick_is_undone(tricked, plain):
    assert normalize(tricked) == plain


@pytest.mark.parametrize("text", MEANT.values(), ids=MEANT)
def test_what_is_meant_stays(text):
    assert normalize(text) == text


def test_lookalikes_are_letters_of_other_scripts_in_the_same_case():
    for letter, others in LOOKALIKES.items():
        for other in others:
            script = unicodedata.name(other).split()[0]
            assert script in ("CYRILLIC", "GREEK", "ARMENIAN")
            assert other.isupper() == letter.isupper()


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_stays(text):
    assert normalize(text) == text


MIXED = (
    "ab Aé01 .-" + ZERO_WIDTH + "".join(LOOKALIKES.values()) + "жя\u0301\ufe0f\u20e3\u3000Ｈﬁ𝐇👩中"
)


@given(st.text() | st.text(MIXED) | st.text(st.characters(exclude_categories=[])))
def test_any_text_becomes_normal_in_one_go(text):
    once = normalize(text)
    assert normalize(once) == once


@given(st.text(st.characters(max_codepoint=127)), st.integers(0, 9))
def test_invisible_characters_in_ascii_are_all_removed(text, seed):
    assert normalize(zero_width(text, 0.7, np.random.default_rng(seed))) == text


@given(st.lists(st.from_regex("[a-zA-Z]{1,9}", fullmatch=True)), st.integers(0, 9))
def test_a_word_returns_unless_no_letter_of_it_is_left(words, seed):
    attacked = homoglyphs(" ".join(words), 0.7, np.random.default_rng(seed)).split()
    for word, other in zip(words, attacked, strict=True):
        assert normalize(other) == (word if any(map(str.isascii, other)) else other)


@pytest.mark.parametrize("attack", [homoglyphs, zero_width])
@pytest.mark.parametrize("jsonl", [False, True])
def test_detection_finds_again_what_tricks_had_hidden(run, key_file, marked, attack, jsonl):
    tricked = attack(marked, 0.5, np.random.default_rng(0))
    stdin = json.dumps(tricked) + "\n" if jsonl else tricked
    options = ["--key", key_file, "--json"] + (["--jsonl"] if jsonl else [])
    hidden = run("detect", *options, stdin=stdin)
    normalized = run("detect", *options, "--normalize", stdin=stdin)
    assert (hidden.status, normalized.status) == (1, 0)
    assert normalized.json["z"] > 10 > hidden.json["z"]


def test_bad_lines_are_still_reported(run, key_file, marked):
    stdin = f"no JSON\n{json.dumps(marked)}\n"
    result = run("detect", "--jsonl", "--normalize", "--key", key_file, stdin=stdin)
    assert (result.status, result.out.count("watermarked")) == (2, 1)


def test_calibration_scores_what_detection_will(run, key_file, marked):
    tricked = zero_width(marked, 0.3, np.random.default_rng(0))
    stdin = json.dumps(tricked) + "\n"
    plain = run("calibrate", "-", "--key", key_file, "--json", stdin=stdin).json
    normal = run("calibrate", "-", "--key", key_file, "--json", "--normalize", stdin=stdin).json
    assert normal["mean_z"] > 10 > plain["mean_z"]
