"""The tokenizer of a GGUF file: training/pretrained.py against `tokenizers` and `transformers`."""

import json
import sys

import pytest
from checkpoints import DREAM_SPECIALS, ORDINARY, tokenizer_json, write_qwen_files
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

import pretrained
from dllmark.relation.tokenizer import EMBEDDED, Tokenizer, load_tokenizer

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

NORMAL, CONTROL, USER_DEFINED, UNUSED = (
    gguf.TokenType[name] for name in ("NORMAL", "CONTROL", "USER_DEFINED", "UNUSED")
)


def write_gguf(path, record, kind, model="gpt2", more=(), **ends):
    """Write the tokens of a tokenizer.json, and more with their types, into a GGUF file."""
    special = {token["content"]: token["id"] for token in record["added_tokens"]}
    ids = record["model"]["vocab"] | special
    types = [CONTROL if name in special else NORMAL for name in sorted(ids, key=ids.get)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if kind:
        writer.add_tokenizer_pre(kind)
    writer.add_token_list([*sorted(ids, key=ids.get), *(name for name, _ in more)])
    writer.add_token_types([*types, *(type_ for _, type_ in more)])
    writer.add_token_merges([" ".join(pair) for pair in record["model"]["merges"]])
    for name, id_ in ends.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", id_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small():
    """A tokenizer.json of a few hundred tokens."""
    return json.loads(tokenizer_json(DREAM_SPECIALS))


def as_ours(record):
    """Return a tokenizer.json as the watermark sees it."""
    return Tokenizer(json.dumps(record), "ours")


def test_the_embedded_tokenizer_is_what_its_gguf_file_says(tmp_path):
    shipped = json.loads(EMBEDDED.read_text("utf-8"))
    path = write_gguf(tmp_path / "smollm.gguf", shipped, "smollm")
    again = pretrained.cut(pretrained.tokenizer(path), 16_384)
    assert again == shipped
    assert as_ours(again).fingerprint == load_tokenizer("embedded").fingerprint


def test_the_same_file_gives_the_same_bytes_whatever_its_name_and_without_transformers(
    small, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "transformers", None)
    written = []
    for name in ("one", "other"):
        path = write_gguf(tmp_path / f"{name}.gguf", small, "qwen2")
        out = tmp_path / f"{name}.json"
        options = [path, "--mask", ORDINARY + 3, "--out", out]
        monkeypatch.setattr(sys, "argv", ["pretrained.py", *map(str, options)])
        pretrained.main()
        written.append(out.read_bytes())
    assert written[0] == written[1]
    assert Backend.from_buffer(written[0]).token_to_id("<|mask|>") == ORDINARY + 3


@pytest.fixture(scope="module")
def qwen(small, tmp_path_factory):
    """The same tokenizer out of a GGUF file, and of Qwen2's three files by `transformers`."""
    folder = tmp_path_factory.mktemp("qwen")
    ours = as_ours(pretrained.tokenizer(write_gguf(folder / "qwen.gguf", small, "qwen2")))
    write_qwen_files(folder, json.dumps(small))
    return ours, transformers.Qwen2Tokenizer.from_pretrained(folder)


@given(text=st.text())
@example("The grass isn't GREEN, it'S red: 2026 lists;\r\n\r\n  two\tblanks   ")
@example("e\u0301 and é, 漢字, ٣٤, 👩‍👩‍👧 <|im_start|>user\nhi<|im_end|><|mask|>")
def test_ids_of_qwen_are_those_of_transformers(qwen, text):
    ours, theirs = qwen
    assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def smollm(small, tmp_path_factory):
    """The same tokenizer out of a GGUF file, and as GPT-2's is built with `tokenizers`."""
    path = write_gguf(tmp_path_factory.mktemp("smollm") / "smollm.gguf", small, "smollm")
    merges = [tuple(pair) for pair in small["model"]["merges"]]
    theirs = Backend(models.BPE(vocab=small["model"]["vocab"], merges=merges))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    theirs.add_special_tokens(list(DREAM_SPECIALS))
    return as_ours(pretrained.tokenizer(path)), theirs


@given(text=st.text())
@example("The grass isn't GREEN, it'S red:  2026 lists;\r\n\r\n  two\tblanks   ")
@example("e\u0301 and é, 漢字, ٣٤, 👩‍👩‍👧 <|im_start|>user\nhi<|im_end|><|mask|>")
def test_ids_of_smollm_are_those_of_gpt_2(smollm, text):
    ours, theirs = smollm
    assert ours.encode(text).tolist() == theirs.encode(text).ids


def test_tokens_are_what_the_file_says_they_are(small, tmp_path):
    more = [("<tool_call>", USER_DEFINED), ("<end>", NORMAL), ("[PAD306]", UNUSED)]
    path = write_gguf(tmp_path / "more.gguf", small, "qwen2", more=more, eos=ORDINARY + 5)
    ours = as_ours(pretrained.tokenizer(path))
    names = [*DREAM_SPECIALS, "<tool_call>", "<end>"]
    ids = [ours.encode(f"a{name}a").tolist()[1:-1] for name in names]
    assert ids == [[ORDINARY + place] for place in range(len(names))]
    assert ours.scored[ORDINARY:].tolist() == [False] * 4 + [True, False]
    assert ours.vocab_size == ORDINARY + len(names)  # and none that only fills up the end


def test_a_mask_takes_the_id_it_is_told_and_later_ones_go(small, tmp_path):
    more = [("<late>", CONTROL), ("[PAD305]", UNUSED)]
    path = write_gguf(tmp_path / "late.gguf", small, "qwen2", more=more)
    record = pretrained.with_mask(pretrained.tokenizer(path), ORDINARY + 3)
    assert [token["content"] for token in record["added_tokens"]] == list(DREAM_SPECIALS)
    ours = as_ours(record)
    assert ours.encode("<|mask|>").tolist() == [ORDINARY + 3]
    assert ours.vocab_size == ORDINARY + 4
    assert not ours.scored[ORDINARY + 3]


@pytest.mark.parametrize(("kind", "model", "message"), [
    ("tekken", "gpt2", r"strange\.gguf cuts text into words as 'tekken'.* smollm, qwen2 are known"),
    (None, "gpt2", r"strange\.gguf has no tokenizer\.ggml\.pre: give a GGUF file"),
    ("qwen2", "llama", r"strange\.gguf has a tokenizer 'llama': only byte-level ones"),
])  # fmt: skip
def test_a_tokenizer_that_is_not_known_is_refused(small, tmp_path, kind, model, message):
    path = write_gguf(tmp_path / "strange.gguf", small, kind, model)
    with pytest.raises(SystemExit, match=message):
        pretrained.tokenizer(path)
