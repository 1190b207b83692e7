"""Documents come out of every kind of file, and what is broken is named, but never quoted."""

import json

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import COMPRESS, lines
from hypothesis import given
from hypothesis import strategies as st

from dllmark.scan import reading
from dllmark.scan.plan import Piece
from dllmark.scan.reading import Columns, CorpusDocument, Unreadable, read_piece

SECRET_WORDS = "never repeat this text"


def read(path, **columns):
    return list(read_piece(Piece(str(path)), Columns(**columns)))


@pytest.fixture
def written(tmp_path):
    """Write a file and read it."""

    def written(name, content, **columns):
        (tmp_path / name).write_bytes(content)
        return read(tmp_path / name, **columns)

    return written


RECORDS = [{"text": "first", "id": "a"}, {"text": "zwéite 🙂", "id": 7}, {"text": "", "id": [1]}]
EXPECTED = [(1, "a", "first"), (2, "7", "zwéite 🙂"), (3, None, "")]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_json_lines_are_read_under_every_compression(written, suffix):
    content = COMPRESS[suffix](lines(RECORDS))
    assert [item[1:] for item in written(f"a.jsonl{suffix}", content)] == EXPECTED


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_text_file_is_one_document(written, suffix):
    items = written(f"a.txt{suffix}", COMPRESS[suffix]("one\ntwo é".encode()))
    assert [item[1:] for item in items] == [(1, None, "one\ntwo é")]


def test_compressed_files_that_were_joined_are_read_to_their_end(written):
    for suffix, compress in COMPRESS.items():
        content = compress(lines(RECORDS[:1])) + compress(lines(RECORDS[1:]))
        assert len(written(f"a.jsonl{suffix}", content)) == 3


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), "dictionary"])
def test_parquet_is_read_whatever_its_type_of_string(tmp_path, kind):
    column = pa.array([text for _, _, text in EXPECTED])
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    pq.write_table(pa.table({"text": column, "id": ["a", "7", None]}), tmp_path / "a.parquet")
    assert [item[1:] for item in read(tmp_path / "a.parquet")] == EXPECTED


def test_files_behind_a_url_are_read():
    fsspec.filesystem("memory").pipe("/crawl/a.jsonl", lines(RECORDS))
    assert [item[1:] for item in read("memory:///crawl/a.jsonl")] == EXPECTED


def test_columns_may_have_other_names(written, tmp_path):
    items = written("a.jsonl", lines([{"content": "words", "url": "u"}]), text="content", id="url")
    assert [item[1:] for item in items] == [(1, "u", "words")]
    pq.write_table(pa.table({"content": ["words"], "url": ["u"]}), tmp_path / "a.parquet")
    items = read(tmp_path / "a.parquet", text="content", id="url")
    assert [item[1:] for item in items] == [(1, "u", "words")]


def test_a_line_may_be_just_a_string_and_start_with_a_byte_order_mark(written):
    assert [item.text for item in written("a.jsonl", b'\xef\xbb\xbf"words"')] == ["words"]
    assert [item.text for item in written("a.txt", b"\xef\xbb\xbfwords")] == ["words"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not a line of JSON"),
        (b"[" * 100_000, "not a line of JSON"),
        (b"17", "neither an object nor a string"),
        (b'{"x": 1}', "no field 'text'"),
        (b'{"text": null}', "the text is null"),
        (b'{"text": 17}', "not a string but of type int"),
        (b'{"text": ["a"]}', "not a string but of type list"),
        (b'{"text": "\xff"}', "not valid UTF-8"),
        (b'{"text": "\\ud800"}', "not valid UTF-8"),
    ],
)
def test_a_bad_line_is_named_and_the_next_one_is_read(written, line, reason):
    problem, good = written("a.jsonl", line + b'\n"good"')
    assert isinstance(problem, Unreadable)
    assert (problem.row, good.row, good.text) == (1, 2, "good")
    assert reason in problem.reason


@pytest.mark.parametrize("id_", [True, 1.5, None, {"a": 1}, "\ud800"])
def test_an_id_that_is_no_name_is_left_out(written, id_):
    [document] = written("a.jsonl", lines([{"text": "words", "id": id_}]))
    assert document.id is None


def test_documents_longer_than_the_limit_are_passed_over(written, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 100)
    items = written("a.jsonl", lines(["x" * 150, "é" * 60, "fits"]))
    assert [type(item) for item in items] == [Unreadable, Unreadable, CorpusDocument]
    assert [item.row for item in items] == [1, 2, 3]
    assert "longer than" in items[0].reason
    assert isinstance(written("a.txt", b"x" * 101)[0], Unreadable)
    assert isinstance(written("a.txt", b"x" * 100)[0], CorpusDocument)
    pq.write_table(pa.table({"text": ["x" * 101, "fits"]}), tmp_path / "a.parquet")
    assert [type(item) for item in read(tmp_path / "a.parquet")] == [Unreadable, CorpusDocument]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_truncated_file_gives_what_is_whole_and_one_problem(written, suffix):
    records = [{"text": f"{n} {n * 2654435761 % 2**32}"} for n in range(20_000)]
    content = COMPRESS[suffix](lines(records))
    *documents, problem = written(f"a.jsonl{suffix}", content[: len(content) * 9 // 10])
    assert isinstance(problem, Unreadable)
    assert problem.reason.startswith("cannot be read")
    whole = [item for item in documents if isinstance(item, CorpusDocument)]
    assert [item.text for item in whole] == [record["text"] for record in records[: len(whole)]]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.xz", "a.jsonl.zst", "a.parquet"])
def test_a_file_that_is_something_else_is_one_problem(written, name):
    [problem] = written(name, SECRET_WORDS.encode() * 10)
    assert (problem.row, isinstance(problem, Unreadable)) == (None, True)
    assert SECRET_WORDS not in problem.reason


def test_a_damaged_row_group_does_not_cost_the_others(tmp_path):
    path = tmp_path / "a.parquet"
    texts = [f"text {n} {n * 2654435761 % 2**32}" for n in range(3000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=1000, use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    items = read(path)
    good = [item for item in items if isinstance(item, CorpusDocument)]
    [problem] = [item for item in items if isinstance(item, Unreadable)]
    assert [item.row for item in good] == [*range(1, 1001), *range(2001, 3001)]
    assert (problem.row, "row group 1" in problem.reason) == (1001, True)


def test_nulls_numbers_and_bytes_that_are_no_text_in_parquet_are_problems(tmp_path):
    bad_string = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    column = pa.chunked_array([pa.array(["good", None]), bad_string])
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    good, null, invalid = read(tmp_path / "a.parquet")
    assert good.text == "good"
    assert (null.reason, invalid.reason) == ("the text is null", "not valid UTF-8")
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "b.parquet")
    assert [item.row for item in read(tmp_path / "b.parquet") if isinstance(item, Unreadable)] == [
        1,
        2,
    ]


def test_a_missing_column_names_those_there_are(tmp_path):
    pq.write_table(pa.table({"content": ["x"], "url": ["y"]}), tmp_path / "a.parquet")
    [problem] = read(tmp_path / "a.parquet")
    assert problem.reason == "no column 'text'; there are: content, url"


def test_binary_data_and_a_vanished_file_are_problems(written, tmp_path):
    assert written("a", b"MZ\0\0")[0].reason == "binary data, not text"
    assert written("b", b"caf\xe9")[0].reason == "not valid UTF-8"
    [problem] = read(tmp_path / "vanished.jsonl")
    assert "No such file" in problem.reason


def test_a_broken_disk_is_not_taken_for_bad_data(tmp_path):
    with pytest.raises(IsADirectoryError):
        read(tmp_path)


@given(st.binary(max_size=200), st.sampled_from(["a.jsonl", "a.jsonl.gz", "a.parquet", "a"]))
def test_no_bytes_whatever_stop_a_reader(tmp_path_factory, content, name):
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(content)
    for item in read(path):
        assert isinstance(item, CorpusDocument | Unreadable)
        json.dumps(item).encode()
