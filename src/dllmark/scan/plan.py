"""Cut the input into shards: the unit of work, of retrying, and of continuing after a crash.

The same files always give the same shards, and a shard's rows depend on nothing but its own bytes.
A big Parquet or plain JSONL file is cut by byte ranges; a compressed file cannot be entered in the
middle and stays whole; small files share a shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import fsspec

from dllmark.scan.inputs import InputFile, shown_path

SMALLEST_SHARD, LARGEST_SHARD = 8 << 20, 256 << 20
SHARDS = 1000
SHARD_FILES = 10_000
COMPRESSIONS = (".gz", ".zst", ".xz")
JSON_LINES = (".jsonl", ".ndjson", ".json")
COUNTED_AT_ONCE = 8 << 20


@dataclass(frozen=True)
class Piece:
    """The part of a file whose documents start at bytes start … end-1, or the whole file.

    `first_row` is the number of the first document there; Parquet files know it themselves.
    """

    path: str
    start: int = 0
    end: int | None = None
    first_row: int = 1
    size: int = 0

    @property
    def shown(self) -> str:
        """Its path as the results name it."""
        return shown_path(self.path)


@dataclass(frozen=True)
class Shard:
    """Pieces that are scored together and whose rows make one file of the output."""

    index: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Its bytes of input."""
        return sum(piece.size for piece in self.pieces)

    @property
    def name(self) -> str:
        """The stem of its files in the output."""
        return f"part-{self.index:06}"

    @property
    def files(self) -> str:
        """What a message calls it: its file, or the first of them."""
        others = len({piece.path for piece in self.pieces}) - 1
        return self.pieces[0].shown + (f" and {others} other files" if others else "")

    def packed(self) -> list[list[Any]]:
        """Return its pieces as plain JSON values."""
        return [[*asdict(piece).values()] for piece in self.pieces]

    @classmethod
    def unpacked(cls, index: int, packed: list[list[Any]]) -> Shard:
        """Return the shard that was packed."""
        return cls(index, tuple(Piece(*values) for values in packed))


def kind(path: str) -> tuple[str, str]:
    """Return whether a file is "parquet", "jsonl" or "text", and its compression or "".

    >>> kind("crawl/a.jsonl.zst"), kind("a.PARQUET"), kind("notes")
    (('jsonl', '.zst'), ('parquet', ''), ('text', ''))
    """
    name = path.lower()
    if name.endswith((".parquet", ".pq")):
        return "parquet", ""
    compression = next((suffix for suffix in COMPRESSIONS if name.endswith(suffix)), "")
    stem = name.removesuffix(compression)
    return ("jsonl" if stem.endswith(JSON_LINES) else "text"), compression


def shard_size(files: Iterable[InputFile]) -> int:
    """Return how many bytes a shard should have: about a thousand shards, neither tiny nor huge."""
    wanted = sum(file.size for file in files) // SHARDS
    return min(max(wanted, SMALLEST_SHARD), LARGEST_SHARD)


def cut(files: Iterable[InputFile], shard_bytes: int) -> list[Shard]:
    """Return the shards of some files, in order."""
    groups: list[list[Piece]] = []
    size = 0
    for piece in (piece for file in files for piece in _pieces(file, shard_bytes)):
        if not groups or size + piece.size > shard_bytes or len(groups[-1]) == SHARD_FILES:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.size
    return [Shard(index, tuple(group)) for index, group in enumerate(groups)]


def _pieces(file: InputFile, shard_bytes: int) -> list[Piece]:
    what, compression = kind(file.path)
    if what == "text" or compression or file.size <= shard_bytes:
        return [Piece(file.path, size=file.size)]
    starts = range(0, file.size, shard_bytes)
    ends = [*starts[1:], file.size]
    rows = [1] * len(starts) if what == "parquet" else _first_rows(file.path, starts)
    return [
        Piece(file.path, start, end, row, end - start)
        for start, end, row in zip(starts, ends, rows, strict=True)
    ]


def _first_rows(path: str, starts: range) -> list[int]:
    """Return the number of the first line that starts at or after each byte.

    That takes one pass over the file, many ranges at a time. Scoring takes a hundred times longer.
    """
    fs, inside = fsspec.core.url_to_fs(path)

    def line_ends(start: int, end: int) -> int:
        return sum(
            fs.cat_file(inside, at, min(at + COUNTED_AT_ONCE, end)).count(b"\n")
            for at in range(start, end, COUNTED_AT_ONCE)
        )

    # A line starts before byte s if the one before it ends before byte s - 1.
    bounds = [0, *(start - 1 for start in starts[1:])]
    with ThreadPoolExecutor(8) as threads:
        counts = list(threads.map(line_ends, bounds, bounds[1:]))
    rows = [1]
    for number, count in enumerate(counts):
        rows.append(rows[-1] + count + (number == 0))
    return rows
