"""Changes of characters: what stays the same, and how much changes."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.attacks.characters import SPACES, TEXT_ATTACKS, paste
from dllmark.errors import InputError

TEXT = "Some people ask why the sky is blue, and Others ask why it is not. " * 5
HUMANS = [f"h{number}a h{number}b\nh{number}c" for number in range(40)]


def attacked(name, text=TEXT, ratio=0.3, seed=0):
    return TEXT_ATTACKS[name](text, ratio, np.random.default_rng(seed))


def test_homoglyphs_replace_a_share_of_the_letters_that_have_one():
    result = attacked("homoglyphs")
    assert len(result) == len(TEXT)
    changed = [(a, b) for a, b in zip(TEXT, result, strict=True) if a != b]
    assert all(a.isascii() and not unicodedata.name(b).startswith("LATIN") for a, b in changed)
    everything = attacked("homoglyphs", ratio=1.0)
    possible = sum(a != b for a, b in zip(TEXT, everything, strict=True))
    assert len(changed) == round(0.3 * possible)


def test_invisible_characters_have_no_width_and_leave_the_text():
    result = attacked("zero-width")
    added = [one for one in result if unicodedata.category(one) == "Cf"]
    assert len(added) == round(0.3 * len(TEXT))
    assert "".join(one for one in result if one not in added) == TEXT


def test_the_case_of_a_share_of_words_changes_and_nothing_else():
    result = attacked("case")
    assert result.lower() == TEXT.lower()
    pairs = zip(TEXT.split(), result.split(), strict=True)
    changed = [(a, b) for a, b in pairs if a != b]
    assert len(changed) == round(0.3 * len(TEXT.split()))
    assert all(a[0] == b[0].swapcase() and a[1:] == b[1:] for a, b in changed)


def test_white_space_changes_and_words_stay():
    result = attacked("whitespace")
    assert result.split() == TEXT.split()
    gaps = re.findall(r"\s+", result)
    assert sum(gap != " " for gap in gaps) == round(0.3 * TEXT.count(" "))
    assert {*re.findall(r"\s+", attacked("whitespace", "a b " * 300, 1.0))} == {*SPACES}


@given(st.text(), st.floats(0, 1))
def test_truncation_leaves_the_beginning(text, ratio):
    result = attacked("truncate", text, ratio)
    assert text.startswith(result)
    words = len(text.split())
    assert len(result.split()) == words - round(words * ratio)


@pytest.mark.parametrize("name", TEXT_ATTACKS)
@given(text=st.text(), ratio=st.floats(0, 1))
def test_any_text_can_be_attacked(name, text, ratio):
    assert attacked(name, text, ratio) == attacked(name, text, ratio)
    if name != "truncate":
        assert attacked(name, text, 0.0) == text


@pytest.mark.parametrize("name", TEXT_ATTACKS)
def test_a_ratio_is_a_share_of_the_text(name):
    with pytest.raises(InputError, match="from 0 to 1; got 2"):
        attacked(name, ratio=2)


@given(st.integers(1, 30), st.sampled_from([0.25, 0.5, 0.8, 1.0]), st.integers(0, 99))
def test_a_pasted_text_stands_whole_among_human_words(count, ratio, seed):
    text = " ".join(f"m{number}" for number in range(count))
    result = paste(text, ratio, np.random.default_rng(seed), HUMANS)
    before, after = result.split(text)
    human = (before + after).split()
    assert len(human) == round(count / ratio) - count
    assert len(set(human)) == len(human)  # no human word stands there twice
    assert all(word.startswith("h") for word in human)


def test_pasting_keeps_the_white_space_of_human_texts():
    result = paste("m", 0.25, np.random.default_rng(3), ["one\ntwo\nthree"])
    assert result.replace("m", "").split() == ["one", "two", "three"]
    assert result.count("\n") >= 1


def test_pasting_needs_enough_human_text():
    with pytest.raises(
        InputError, match=r"90 human words are needed .* and there are 2: give more"
    ):
        paste("m " * 10, 0.1, np.random.default_rng(0), ["one two"])
    with pytest.raises(InputError, match="more than 0"):
        paste("m", 0.0, np.random.default_rng(0), HUMANS)
    assert paste("", 0.0, np.random.default_rng(0), HUMANS) == ""
