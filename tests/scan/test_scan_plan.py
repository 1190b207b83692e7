"""Shards cover every document exactly once, wherever the cuts fall."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.scan.inputs import InputFile, find_files
from dllmark.scan.plan import LARGEST_SHARD, SMALLEST_SHARD, Shard, cut, kind, shard_size
from dllmark.scan.reading import Columns, CorpusDocument, Unreadable, read_piece


def read_all(path, shard_bytes):
    shards = cut(find_files([str(path)], "out").files, shard_bytes)
    return [
        item for shard in shards for piece in shard.pieces for item in read_piece(piece, Columns())
    ]


@given(
    st.lists(st.sampled_from([b"", b"{", b'"ab"', b'"' + 30 * b"c" + b'"', b" "]), max_size=30),
    st.booleans(),
    st.integers(1, 40),
)
def test_each_line_is_read_once_under_its_number(tmp_path_factory, parts, ended, shard_bytes):
    content = b"\n".join(parts) + (b"\n" if ended else b"")
    path = tmp_path_factory.mktemp("plan") / "a.jsonl"
    path.write_bytes(content)
    expected = [
        (row, json.loads(line) if line.startswith(b'"') else None)
        for row, line in enumerate(content.split(b"\n"), 1)
        if line.strip()
    ]
    items = read_all(path, shard_bytes)
    assert [(item.row, getattr(item, "text", None)) for item in items] == expected


@pytest.mark.parametrize("shard_bytes", [100, 1000, 10**6])
def test_each_row_group_is_read_once_under_its_numbers(tmp_path, shard_bytes):
    texts = [f"text {n}" for n in range(95)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=10)
    items = read_all(tmp_path / "a.parquet", shard_bytes)
    assert [(item.row, item.text) for item in items] == list(enumerate(texts, 1))


def file(name, size):
    return InputFile(name, size, "")


def paths(shards):
    return [[piece.path for piece in shard.pieces] for shard in shards]


def test_small_files_share_a_shard_and_compressed_ones_are_never_cut():
    files = [file("a.txt", 40), file("b.txt", 40), file("c.jsonl.gz", 500), file("d.txt", 1)]
    shards = cut(files, 100)
    assert paths(shards) == [["a.txt", "b.txt"], ["c.jsonl.gz"], ["d.txt"]]
    assert [shard.size for shard in shards] == [80, 500, 1]


def test_many_empty_files_do_not_make_one_endless_shard():
    shards = cut([file(f"{n}.txt", 0) for n in range(20_001)], 100)
    assert [len(shard.pieces) for shard in shards] == [10_000, 10_000, 1]


def test_a_shard_survives_being_written_down():
    [shard] = cut([file("a.txt", 40), file("b.txt", 40)], 100)
    assert Shard.unpacked(0, json.loads(json.dumps(shard.packed()))) == shard


def test_shards_grow_with_the_input_within_limits():
    assert shard_size([file("a", 1)]) == SMALLEST_SHARD
    assert shard_size([file("a", 50 << 30)]) == (50 << 30) // 1000
    assert shard_size([file("a", 1 << 50)]) == LARGEST_SHARD


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.parquet", ("parquet", "")),
        ("a.jsonl", ("jsonl", "")),
        ("a.json.gz", ("jsonl", ".gz")),
        ("a.ndjson.xz", ("jsonl", ".xz")),
        ("a.txt.zst", ("text", ".zst")),
        ("README", ("text", "")),
    ],
)
def test_the_name_says_what_a_file_is(name, expected):
    assert kind(f"memory://x/{name}") == expected


def test_documents_and_problems_are_what_readers_yield(tmp_path):
    (tmp_path / "a.jsonl").write_text('"text"\n{')
    document, problem = read_all(tmp_path / "a.jsonl", 100)
    assert isinstance(document, CorpusDocument)
    assert isinstance(problem, Unreadable)
