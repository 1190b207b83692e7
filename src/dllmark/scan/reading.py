"""Read the documents of a piece of a file, one after the other, in memory that does not grow.

What cannot be read is an `Unreadable` with its place and its reason, never the text itself. A
failing connection or disk is no property of the data: it is raised.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, cast

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from dllmark.scan.inputs import Unreadable
from dllmark.scan.plan import Piece, kind

LARGEST = 64 << 20
"""Bytes of the longest document that is scored."""

BUFFER = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

ROWS_AT_ONCE = 256
"""Rows of Parquet decoded at a time."""

BROKEN = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    pa.ArrowException,
    FileNotFoundError,
    PermissionError,
)


class CorpusDocument(NamedTuple):
    """A text, and where it came from."""

    path: str
    row: int
    id: str | None
    text: str


@dataclass(frozen=True)
class Columns:
    """What the text and the document's own name are called in the data."""

    text: str = "text"
    id: str = "id"


class _BadTextError(ValueError):
    """A text that cannot be scored; its message says why."""


def read_piece(
    piece: Piece, columns: Columns, on_bytes: Callable[[int], None] = lambda done: None
) -> Iterator[CorpusDocument | Unreadable]:
    """Yield the documents of a piece; `on_bytes` is told how far in it the reader is."""
    what, compression = kind(piece.path)
    try:
        with _open(piece.path) as raw:
            if what == "parquet":
                yield from _parquet(raw, piece, columns, on_bytes)
                return
            file = _decompressed(raw, compression)
            if what == "text":
                yield _whole_text(file, piece)
            else:
                seekable = raw.seekable()  # a pipe does not know where it is
                for item in _lines(file, piece, columns):
                    if seekable:
                        on_bytes(raw.tell() - piece.start)
                    yield item
    except Exception as error:
        if not _is_damage(error):
            raise
        yield Unreadable(piece.shown, None, f"cannot be read: {_first_line(error)}")


def _open(path: str) -> BinaryIO:
    """Open a file, or a URL through a buffer: reading line by line needs one."""
    if "://" not in path:
        return open(path, "rb", BUFFER)
    return io.BufferedReader(fsspec.open(path, "rb").open(), BUFFER)


def _is_damage(error: Exception) -> bool:
    """Return whether reading failed because of the data; arrow's own OSErrors have no number."""
    if isinstance(error, MemoryError):
        return False
    return isinstance(error, BROKEN) or (isinstance(error, OSError) and error.errno is None)


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _decompressed(raw: BinaryIO, compression: str) -> BinaryIO:
    if compression == ".gz":
        return cast(BinaryIO, gzip.open(raw))
    if compression == ".xz":
        return cast(BinaryIO, lzma.open(raw))
    if compression == ".zst":
        return io.BufferedReader(pa.CompressedInputStream(raw, "zstd"), BUFFER)
    return raw


def _whole_text(file: BinaryIO, piece: Piece) -> CorpusDocument | Unreadable:
    content = file.read(LARGEST + 1).removeprefix(BYTE_ORDER_MARK)
    try:
        if b"\0" in content:
            raise _BadTextError("binary data, not text")
        return CorpusDocument(piece.shown, 1, None, _text(content))
    except _BadTextError as error:
        return Unreadable(piece.shown, 1, str(error))


def _lines(file: BinaryIO, piece: Piece, columns: Columns) -> Iterator[CorpusDocument | Unreadable]:
    """Yield the documents of the lines that start in a piece; blank lines are passed over."""
    at, row = piece.start, piece.first_row
    if at:
        file.seek(at - 1)
        at += _skip_line(file) - 1
    while piece.end is None or at < piece.end:
        line = file.readline(LARGEST + 1)
        if not line:
            return
        at += len(line)
        if len(line) > LARGEST and not line.endswith(b"\n"):
            at += _skip_line(file)
        if line.strip():
            try:
                text, id_ = _record(line.removeprefix(BYTE_ORDER_MARK), columns)
                yield CorpusDocument(piece.shown, row, id_, text)
            except _BadTextError as error:
                yield Unreadable(piece.shown, row, str(error))
        row += 1


def _skip_line(file: BinaryIO) -> int:
    """Read on to behind the next line end, and return how many bytes that were."""
    skipped = 0
    while part := file.readline(1 << 20):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _record(line: bytes, columns: Columns) -> tuple[str, str | None]:
    if len(line) > LARGEST:
        raise _BadTextError(_too_long())
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        raise _BadTextError("not valid UTF-8") from None
    except (ValueError, RecursionError):
        raise _BadTextError("not a line of JSON") from None
    if isinstance(record, str):
        return _text(record), None
    if not isinstance(record, dict):
        raise _BadTextError("neither an object nor a string")
    if columns.text not in record:
        raise _BadTextError(f"no field {columns.text!r}")
    return _text(record[columns.text]), _id(record.get(columns.id))


def _text(value: object) -> str:
    """Return a value as text that a tokenizer takes."""
    if value is None:
        raise _BadTextError("the text is null")
    if not isinstance(value, str | bytes):
        raise _BadTextError(f"the text is not a string but of type {type(value).__name__}")
    if len(value) > LARGEST:
        raise _BadTextError(_too_long())
    try:
        if isinstance(value, bytes):
            return value.decode()
        if not value.isascii():
            value.encode()
    except UnicodeError:
        raise _BadTextError("not valid UTF-8") from None
    return value


def _too_long() -> str:
    return f"longer than {LARGEST >> 20} MB"


def _id(value: object) -> str | None:
    """Return a document's own name if it has a usable one."""
    if isinstance(value, bool) or not isinstance(value, str | bytes | int):
        return None
    try:
        return (value if isinstance(value, bytes) else str(value).encode()).decode()
    except ValueError:  # lone surrogates, or an integer of thousands of digits
        return None


def _parquet(
    raw: BinaryIO, piece: Piece, columns: Columns, on_bytes: Callable[[int], None]
) -> Iterator[CorpusDocument | Unreadable]:
    """Yield the documents of the row groups that start in a piece."""
    file = pq.ParquetFile(raw, buffer_size=BUFFER, pre_buffer=False)
    names = file.schema_arrow.names
    if columns.text not in names:
        there = ", ".join(names[:20])
        yield Unreadable(piece.shown, None, f"no column {columns.text!r}; there are: {there}")
        return
    wanted = [name for name in (columns.text, columns.id) if name in names]
    row = 1
    for group in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(group)
        if piece.start <= _offset(about) and (piece.end is None or _offset(about) < piece.end):
            yield from _row_group(file, group, wanted, columns, piece.shown, row)
            on_bytes(_offset(about) - piece.start)
        row += about.num_rows


def _offset(about: Any) -> int:
    """Return where in its file a row group starts."""
    column = about.column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _row_group(
    file: Any, group: int, wanted: list[str], columns: Columns, path: str, row: int
) -> Iterator[CorpusDocument | Unreadable]:
    try:
        for batch in file.iter_batches(ROWS_AT_ONCE, [group], wanted, use_threads=False):
            texts = _binary(batch.column(columns.text)).to_pylist()
            ids = _binary(batch.column(columns.id)).to_pylist() if columns.id in wanted else []
            for number, value in enumerate(texts):
                try:
                    id_ = _id(ids[number]) if ids else None
                    yield CorpusDocument(path, row, id_, _text(value))
                except _BadTextError as error:
                    yield Unreadable(path, row, str(error))
                row += 1
    except Exception as error:
        if not _is_damage(error):
            raise
        reason = f"the rest of row group {group} cannot be read: {_first_line(error)}"
        yield Unreadable(path, row, reason)


def _binary(column: Any) -> Any:
    """Return a column of strings as bytes, since a file may hold strings that are not UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return column.cast(pa.large_binary()) if is_text else column
