"""Tokenizers: where they come from, what identifies them, and how text becomes ids."""

import copy
import json

import huggingface_hub
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from samples import marked_text, plain_text

import dllmark.relation.tokenizer
from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError, InputError, MismatchError, TokenizerError
from dllmark.relation.tokenizer import Tokenizer, load_tokenizer

DEFINITION = {
    "version": "1.0",
    "added_tokens": [
        {"id": 7, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True},
        {"id": 9, "content": "<plain>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": False},
    ],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "c": 2, "ab": 4, "abc": 5, "<end>": 7, "<plain>": 9},
        "merges": [["a", "b"], ["ab", "c"]],
    },
}  # fmt: skip


def changed(change):
    record = copy.deepcopy(DEFINITION)
    change(record)
    return record


def fingerprint(record, **layout):
    return Tokenizer(json.dumps(record, **layout), "any").fingerprint


SAME_IDS = {
    "merges as text": lambda record: record["model"].update(merges=["a b", "ab c"]),
    "what BPE does anyway": lambda record: record["model"].update(ignore_merges=False),
    "padding": lambda record: record.update(
        padding={"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
                 "pad_id": 7, "pad_type_id": 0, "pad_token": "<end>"}
    ),
    "truncation": lambda record: record.update(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    ),
}  # fmt: skip

OTHER_IDS = {
    "a vocabulary entry": lambda record: record["model"]["vocab"].update(d=3),
    "an id": lambda record: record["model"]["vocab"].update(c=3),
    "a merge": lambda record: record["model"]["merges"].pop(),
    "the order of merges": lambda record: record["model"]["merges"].reverse(),
    "the normalizer": lambda record: record.update(normalizer={"type": "NFD"}),
    "no normalizer": lambda record: record.update(normalizer=None),
    "the pre-tokenizer": lambda record: record.update(pre_tokenizer={"type": "Whitespace"}),
    "how BPE merges": lambda record: record["model"].update(ignore_merges=True),
    "a special token": lambda record: record["added_tokens"][0].update(special=False),
    "no special token": lambda record: record["added_tokens"].pop(0),
}


def test_a_fingerprint_ignores_layout_and_the_order_of_fields():
    text = json.dumps(DEFINITION)
    backwards = json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert fingerprint(backwards, indent=3) == fingerprint(DEFINITION)


@pytest.mark.parametrize("change", SAME_IDS.values(), ids=SAME_IDS)
def test_what_does_not_change_the_ids_keeps_the_fingerprint(change):
    record = changed(change)
    assert fingerprint(record) == fingerprint(DEFINITION)
    assert Tokenizer(json.dumps(record), "any").encode("abc ab c").tolist() == [5, 4, 2]


@pytest.mark.parametrize("change", OTHER_IDS.values(), ids=OTHER_IDS)
def test_what_changes_the_ids_changes_the_fingerprint(change):
    assert fingerprint(changed(change)) != fingerprint(DEFINITION)


def byte_level(trim_offsets, nested):
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": trim_offsets}
    return {"type": "Sequence", "pretokenizers": [step]} if nested else step


@pytest.mark.parametrize("nested", [False, True])
def test_where_tokens_start_and_end_is_not_in_the_fingerprint(nested):
    one, other = (
        fingerprint(changed(lambda record, trim=trim: record.update(
            pre_tokenizer=byte_level(trim, nested)
        )))
        for trim in (True, False)
    )  # fmt: skip
    assert one == other != fingerprint(DEFINITION)


def test_a_key_fits_only_the_tokenizer_it_was_made_for(small_tokenizer, key, small_key):
    assert Detector(small_key, small_tokenizer).tokenizer is small_tokenizer
    with pytest.raises(
        MismatchError, match=r"the tokenizer small is not the one key .* was made for"
    ):
        Detector(key, small_tokenizer)


def test_special_tokens_and_ids_without_a_token_are_not_scored():
    scored = Tokenizer(json.dumps(DEFINITION), "any").scored
    assert np.flatnonzero(scored).tolist() == [0, 1, 2, 4, 5, 9]
    assert len(scored) == 10


def edges_of(tokenizer, text):
    """Each token of a text, with whether it begins and ends with a character of words."""
    ids = tokenizer.encode(text)
    return {tokenizer.decode([id_]): tuple(tokenizer.word_edges[:, id_]) for id_ in ids}


def test_a_tokenizer_knows_which_tokens_go_on_with_a_word(tokenizer):
    found = edges_of(tokenizer, " knots, don't: 19-the 你好")
    whole, start, none = (True, True), (False, True), (False, False)
    assert found | {" kn": start, "ots": whole, ",": none, " don": start, "'t": whole} == found
    assert found | {"1": whole, "-": none, "the": whole} == found
    assert {edges for token, edges in found.items() if token == "\ufffd"} == {none}


def test_scripts_without_spaces_have_no_words_to_go_on_with():
    words = {"<unk>": 0, "a": 1, "▁the": 2, "the": 3, "你好": 4}
    definition = {
        "version": "1.0", "added_tokens": [],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }  # fmt: skip
    edges = Tokenizer(json.dumps(definition), "spaces").word_edges
    assert edges[:, 1:].tolist() == [[True, False, True, False], [True, True, True, False]]


def test_a_special_token_written_in_a_text_is_not_scored(tokenizer):
    ids = tokenizer.encode("one<|mask|>two")
    assert tokenizer.scored[ids].tolist() == [True, False, True]


@given(text=st.text())
@example(text="no <|mask, no endoftext|>")
def test_text_survives_its_ids(tokenizer, text):
    ids, offsets = tokenizer.encode_with_offsets(text)
    assume(tokenizer.scored[ids].all())  # a special token written in a text is lost
    assert tokenizer.decode(ids) == text
    assert np.array_equal(ids, tokenizer.encode(text))
    assert offsets.shape == (len(ids), 2)
    assert {index for start, end in offsets for index in range(start, end)} == {*range(len(text))}


def test_sample_texts_are_one_token_a_word(tokenizer, key):
    assert len(tokenizer.encode(plain_text(tokenizer, 50))) == 50
    detection = Detector(key, tokenizer).detect(marked_text(key, tokenizer, 50))
    assert (detection.pairs, detection.green) == (49, 49)


LONG_TEXTS = {
    "words": "Some words of a text, and no two lines of it are alike. " * 20,
    "lines": "One line\nafter another,\r\n\r\n some of them \n indented.\n\n\n" * 20,
    "double spaces": "Two  spaces  between  words,  and  three   here. " * 20,
    "runs of spaces": f"{'column':20}{'another':13}{'last':7}\t \n" * 20,
    "space before line ends": "A line that ends in spaces  \nand so on   \r\n" * 20,
    "numbers and signs": "In 1984, 3 x 7 = 21 -- isn't it? (Or: 2 ** 5 != 10.) " * 20,
    "other scripts": "Žluťoučký kůň, 北京 和 上海, naïve façade, e\u0301 🤷🏽‍♀️ here. " * 20,
}


@pytest.mark.parametrize("piece", [64, 71, 100, 257])
@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_a_long_text_has_the_ids_of_the_same_text_uncut(tokenizer, monkeypatch, text, piece):
    ids, offsets = tokenizer.encode_with_offsets(text)
    monkeypatch.setattr(dllmark.relation.tokenizer, "PIECE", piece)
    cut_ids, cut_offsets = tokenizer.encode_with_offsets(text)
    assert cut_ids.tolist() == ids.tolist()
    assert cut_offsets.tolist() == offsets.tolist()
    short = "A short one."
    batch = [each.tolist() for each in tokenizer.encode_many([short, text, "", text])]
    assert batch == [tokenizer.encode(short).tolist(), ids.tolist(), [], ids.tolist()]


def test_a_long_text_without_spaces_is_read_to_its_end(tokenizer, monkeypatch):
    text = "北京和上海" * 50
    monkeypatch.setattr(dllmark.relation.tokenizer, "PIECE", 64)
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert tokenizer.decode(ids) == text
    assert offsets.max() == len(text)


def test_lone_surrogates_are_a_clear_error(tokenizer):
    for encode in (tokenizer.encode, tokenizer.encode_with_offsets):
        with pytest.raises(InputError, match="lone surrogates: it is not valid Unicode"):
            encode("\ud800")


def test_a_tokenizer_is_loaded_from_its_file_or_folder(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(DEFINITION))
    for source in (path, tmp_path):
        loaded = load_tokenizer(str(source))
        assert loaded.id.fingerprint == fingerprint(DEFINITION)
        assert loaded.id.name == str(path)


NOWHERE = ["missing.json", "./missing/tokenizer.json", "/missing/model", "a/b/c", "", "x" * 300]


@pytest.mark.parametrize("source", NOWHERE)
def test_a_tokenizer_that_is_nowhere_says_what_can_be_given(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TokenizerError, match=r"give `embedded`, a tokenizer\.json, a folder"):
        load_tokenizer(source)


def test_a_folder_under_the_name_of_the_file_is_a_clear_error(tmp_path):
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(TokenizerError, match=r"cannot read .* as a tokenizer\.json"):
        load_tokenizer(str(tmp_path))


BROKEN = {
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "no tokenizer": b'{"model": 1}',
    "no object": b"[]",
    "no vocabulary": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("hub", [False, True])
def test_a_broken_tokenizer_is_a_clear_error(tmp_path, monkeypatch, content, hub):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: str(path))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer("owner/model" if hub else str(path))


def test_a_tokenizer_of_the_hub_keeps_its_name(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text(json.dumps(DEFINITION))
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda model, file: str(tmp_path / file)
    )
    loaded = load_tokenizer("owner/model")
    assert (loaded.name, loaded.fingerprint) == ("owner/model", fingerprint(DEFINITION))


def test_a_hub_that_cannot_be_reached_is_asked_once_and_says_what_to_do(monkeypatch):
    requested = []

    def offline(_, name):
        requested.append(name)
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(DllmarkError, match=r"LocalEntryNotFoundError.*give the path of its tok"):
        load_tokenizer("owner/model")
    assert requested == ["tokenizer.json"]


def test_a_folder_without_a_tokenizer_says_what_it_needs(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer in the folder .* needs a tokenizer\.j"):
        load_tokenizer(str(tmp_path))


def test_a_folder_that_may_not_be_read_is_an_error_of_one_line(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.stat", refused)  # what Path.exists lets through
    with pytest.raises(TokenizerError, match="that can be read"):
        load_tokenizer(str(tmp_path))
