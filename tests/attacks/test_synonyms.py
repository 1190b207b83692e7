"""Synonyms: read from WordNet's own files, put in place of as many words as asked for."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_wordnet import FILES, SYNONYMS, write_wordnet

from dllmark.attacks.synonyms import read_wordnet, replace_synonyms
from dllmark.errors import InputError

words = st.sampled_from(["car", "Car", "CAR", "big", "start", "cat", "wagons", "i", "naïve", "x1"])
texts = st.lists(st.tuples(words, st.sampled_from([" ", "\n", ", ", "-", "  "]))).map(
    lambda pieces: "".join(word + gap for word, gap in pieces)
)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["unix", "dos"])
def test_a_word_has_the_synonyms_of_its_most_used_meaning(tmp_path, end):
    assert read_wordnet(write_wordnet(tmp_path / "wn", end)) == SYNONYMS


@given(texts, st.floats(0, 1), st.integers(0, 2**32))
def test_a_share_of_the_words_that_have_one_is_replaced_and_nothing_else(text, ratio, seed):
    result = replace_synonyms(text, ratio, np.random.default_rng(seed), SYNONYMS)
    before, after = re.split("([A-Za-z]+)", text), re.split("([A-Za-z]+)", result)
    assert len(before) == len(after)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    known = [word for word in before if word.lower() in SYNONYMS]
    assert len(changed) == round(ratio * len(known))
    for old, new in changed:
        assert new.lower() in SYNONYMS[old.lower()]
        assert (new[0].isupper(), new.isupper()) == (old[0].isupper(), old.isupper())


def test_every_synonym_is_taken_and_the_seed_decides():
    results = [
        replace_synonyms("start " * 50, 1.0, np.random.default_rng(seed), SYNONYMS)
        for seed in (1, 1, 2)
    ]
    assert results[0] == results[1] != results[2]
    assert 10 < results[0].count("begin") < 40
    assert results[0].count("begin") + results[0].count("commence") == 50


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tmp_path, name):
    (write_wordnet(tmp_path / "wn") / name).unlink()
    with pytest.raises(InputError, match=f"cannot read .*{re.escape(name)}: No such file"):
        read_wordnet(tmp_path / "wn")


@pytest.mark.parametrize(
    ("name", "content"),
    [("data.verb", b"car auto\n"), ("cntlist.rev", b"car 70\n"), ("data.adv", b"\xff\xfe")],
    ids=["words", "counts", "no text"],
)
def test_files_of_another_format_are_refused(tmp_path, name, content):
    (write_wordnet(tmp_path / "wn") / name).write_bytes(content)
    with pytest.raises(InputError, match="files of another format: give a folder with"):
        read_wordnet(tmp_path / "wn")
