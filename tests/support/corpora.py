"""Small corpora to scan: marked and unmarked documents in every kind of file, and broken ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FIXED_TIME = 1_700_000_000


def lines(records) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd}


def make_corpus(folder: Path, texts: list[str]) -> Path:
    """Write texts as plain and compressed JSONL, Parquet and text files, with some bad rows."""
    folder.mkdir()
    records = [{"id": f"d{n}", "text": text, "n": n} for n, text in enumerate(texts)]
    (folder / "a.jsonl").write_bytes(lines(records) + b"{broken\n" + lines([{"text": None}]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines(records[:7]), mtime=0))
    pq.write_table(pa.table({"id": [1, 2, 3], "text": [*texts[:2], None]}), folder / "c.parquet")
    (folder / "d.txt").write_text(texts[0])
    (folder / "e.bin").write_bytes(b"\0\1\2\3")
    for path in folder.iterdir():
        os.utime(path, (FIXED_TIME, FIXED_TIME))
    return folder


def badly_named(folder: Path, text: str) -> Path:
    """Make a folder with three files, two of whose names are not UTF-8; one of these is damaged."""
    folder.mkdir()
    for name, content in ((b"caf\xe9.txt", text), (b"good.txt", text), (b"\xff.jsonl", "{")):
        path = os.path.join(os.fsencode(folder), name)
        with open(path, "w") as file:
            file.write(content)
        os.utime(path, (FIXED_TIME, FIXED_TIME))
    return folder


def tree(folder: Path) -> dict[str, str]:
    """Return every file below a folder, and a hash of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rows(folder: Path) -> list[dict]:
    """Return all rows of a finished scan, in the order of the shards."""
    return pq.read_table(folder / "rows").to_pylist()


def errors(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "errors.jsonl").read_bytes().splitlines()]
