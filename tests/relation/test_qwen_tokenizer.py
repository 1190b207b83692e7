"""Qwen2's three tokenizer files give the ids that `transformers` gives with them."""

import json
import unicodedata

import pytest
import transformers
from checkpoints import DREAM_SPECIALS, ORDINARY, tokenizer_json, write_qwen_files
from hypothesis import example, given
from hypothesis import strategies as st

from dllmark.errors import TokenizerError
from dllmark.relation.qwen_tokenizer import FILES, definition
from dllmark.relation.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small tokenizer in Qwen2's files."""
    folder = tmp_path_factory.mktemp("qwen")
    write_qwen_files(folder, tokenizer_json(DREAM_SPECIALS))
    return folder


@pytest.fixture(scope="module")
def ours(folder):
    """The tokenizer that is made of them."""
    return Tokenizer(definition(folder), "ours")


@pytest.fixture(scope="module")
def theirs(folder):
    """The same files read by `transformers`."""
    return transformers.Qwen2Tokenizer.from_pretrained(folder)


@given(text=st.text())
@example("The grass isn't GREEN, it'S red: 2026 lists;\r\n\r\n  two\tblanks   ")
@example("e\u0301 and é, 漢字, <|im_start|>user\nhi<|im_end|><|mask|>")
def test_ids_are_those_of_transformers(ours, theirs, text):
    assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)


@given(text=st.text().filter(lambda text: not any(name in text for name in DREAM_SPECIALS)))
def test_any_text_without_special_tokens_comes_back_composed(ours, text):
    assert ours.decode(ours.encode(text)) == unicodedata.normalize("NFC", text)


def test_added_tokens_keep_their_ids_and_are_not_scored(ours):
    ids = ours.encode("".join(DREAM_SPECIALS))
    assert ids.tolist() == list(range(ORDINARY, ORDINARY + len(DREAM_SPECIALS)))
    assert not ours.scored[ids].any()


def test_an_added_token_that_is_not_special_is_scored(tmp_path):
    record = json.loads(tokenizer_json(("<tool_call>",)))
    record["added_tokens"][0]["special"] = False
    write_qwen_files(tmp_path, json.dumps(record))
    assert Tokenizer(definition(tmp_path), "tool").scored[ORDINARY]


def test_added_tokens_that_leave_a_gap_are_refused(tmp_path):
    record = json.loads(tokenizer_json(DREAM_SPECIALS))
    del record["added_tokens"][1]
    write_qwen_files(tmp_path, json.dumps(record))
    with pytest.raises(TokenizerError, match=r"do not continue the 300 ids of vocab\.json"):
        definition(tmp_path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [None, b"\xff", b"[]", b"{", b"{}"])
def test_a_file_that_is_missing_or_damaged_is_refused(tmp_path, name, content):
    write_qwen_files(tmp_path, tokenizer_json(DREAM_SPECIALS))
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=tmp_path.name):
        Tokenizer(definition(tmp_path), str(tmp_path))
