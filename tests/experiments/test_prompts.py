"""Prompts come from files and from datasets, and what is wrong with either is said in a line."""

import json
import sys

import pytest

from dllmark.errors import DllmarkError, InputError
from dllmark.experiments.prompts import read_c4, read_eli5, read_field


def test_c4_prompts_are_thirty_tokens(tokenizer, tmp_path):
    text = " ".join(f"word{number}" for number in range(100))
    (tmp_path / "c4.jsonl").write_text(json.dumps({"text": text}) + "\n")
    dataset_read = read_c4(str(tmp_path / "c4.jsonl"), tokenizer, 1)
    ids = tokenizer.encode(text)
    assert dataset_read.prompts == [tokenizer.decode(ids[:30])]
    assert dataset_read.prompts[0] + dataset_read.truths[0] == text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"question": "a", "answer": "b"}', "has 1 rows, fewer than 2 samples"),
        ('{"question": "a", "answer": "b"}\n{', "eli5.jsonl:2: not a line of JSON"),
        (
            '{"question": "a", "answer": "b"}\n{"question": " ", "answer": "b"}',
            '2: "question" is empty',
        ),
        ('{"question": "a", "answer": "b"}\n[1]', '2: no string under "question"'),
        (b"\xff\n\xff", "byte 0 is not valid UTF-8"),
    ],
)
def test_bad_prompts_are_named(tmp_path, content, reason):
    path = tmp_path / "eli5.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=reason):
        read_eli5(str(path), 2)


def test_a_file_is_read_whole_where_all_of_it_counts(tmp_path):
    path = tmp_path / "c4.jsonl"
    path.write_text('{"text": "a\u2028b"}\n{"text": "c"}', encoding="utf-8-sig")  # with a mark
    assert read_field(str(path), "text", 1) == ["a\u2028b", "c"]


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset in a folder, read by the library as it reads one on the hub."""
    pytest.importorskip("datasets", reason="pip install 'dllmark[eval]'")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()

    def write(rows, split="train"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
        return f"hf:{folder}"

    return write


def test_a_dataset_gives_what_a_file_of_its_rows_gives(dataset, tokenizer, tmp_path):
    rows = [{"text": f"Document {number} has some words."} for number in range(5)]
    source = dataset(rows)
    path = tmp_path / "c4.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_c4(source, tokenizer, 3) == read_c4(str(path), tokenizer, 3)
    assert read_field(source, "text", 4) == [row["text"] for row in rows[:4]]


def test_a_split_is_chosen_and_empty_rows_are_passed_over(dataset):
    dataset([{"question": "train", "answer": "a"}])
    rows = [{"question": "", "answer": "x"}, {"question": None, "answer": "x"},
            {"question": "q", "answer": "a"}]  # fmt: skip
    dataset_read = read_eli5(dataset(rows, "validation") + "::validation", 1)
    assert (dataset_read.prompts, dataset_read.truths, dataset_read.chat) == (["q"], ["a"], True)


def test_a_dataset_with_other_columns_is_refused_and_they_are_named(dataset):
    source = dataset([{"title": "q", "answers": ["a"]}])
    with pytest.raises(InputError, match='has the columns title, answers and no "question"'):
        read_eli5(source, 1)


def test_a_dataset_with_too_few_rows_is_refused(dataset):
    with pytest.raises(InputError, match="has 1 rows, fewer than 2 samples"):
        read_field(dataset([{"text": "a"}]), "text", 2)


@pytest.mark.parametrize("source", ["hf:", "hf:a:b:c:d"])
def test_a_dataset_needs_a_name(source):
    with pytest.raises(InputError, match="names no dataset: write hf:NAME:CONFIG:SPLIT"):
        read_field(source, "text", 1)


@pytest.mark.parametrize("what", ["{}::nothing", "{}/nowhere/at/all", "nobody/nothing"])
def test_a_dataset_that_is_not_there_is_one_line(dataset, monkeypatch, what):
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    source = "hf:" + what.format(dataset([{"text": "a"}]).removeprefix("hf:"))
    with pytest.raises(InputError, match=r"cannot read hf:.* \(\w+: .+\): check the name") as told:
        read_field(source, "text", 1)
    assert "\n" not in str(told.value)


def test_without_the_library_it_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DllmarkError, match=r"pip install 'dllmark\[eval\]'"):
        read_field("hf:allenai/c4", "text", 1)
