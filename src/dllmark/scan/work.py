"""Scan one shard: read its documents, score them block by block, write rows and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dllmark.detection.detector import Verdict
from dllmark.errors import DllmarkError, InputError
from dllmark.files import atomic_write
from dllmark.relation.key import WatermarkKey
from dllmark.relation.payload import Payloads
from dllmark.relation.tokenizer import load_tokenizer
from dllmark.scan.encoding import one_thread
from dllmark.scan.inputs import Unreadable
from dllmark.scan.plan import Shard
from dllmark.scan.reading import Columns, CorpusDocument, read_piece
from dllmark.scan.rule import Rule
from dllmark.scan.scoring import Scorer

BLOCK_TEXTS = 4096
BLOCK_CHARACTERS = 1 << 22
ROW_GROUP = 1 << 16

SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("row", pa.int64()),
        ("id", pa.string()),
        ("too_short", pa.bool_()),
        ("z", pa.float64()),
        ("p_value", pa.float64()),
        ("pairs", pa.int64()),
        ("key_id", pa.string()),
    ]
)

CONTINUES = "What is done is kept; the same command continues"

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class ScanSettings:
    """What every worker must know; it holds the keys, so it is never stored or printed."""

    keys: tuple[WatermarkKey, ...]
    rule: Rule
    columns: Columns
    tokenizers: tuple[str, ...] = ()
    strict: bool = False
    payloads: Payloads | None = None

    def scorer(self) -> Scorer:
        """Load the tokenizers, once a process."""
        one_thread()
        tokenizers = [load_tokenizer(source) for source in self.tokenizers]
        return Scorer(self.keys, self.rule.rate, tokenizers, self.payloads)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows: payloads too, where they are looked for."""
        return SCHEMA if self.payloads is None else SCHEMA.append(pa.field("payload", pa.string()))


def rows_path(folder: Path, shard: Shard) -> Path:
    """Where a shard's rows go: the file that says it is done."""
    return folder / "rows" / f"{shard.name}.parquet"


def errors_path(folder: Path, shard: Shard) -> Path:
    """Where a shard's errors wait until all shards are done."""
    return folder / "unfinished" / f"{shard.name}.jsonl"


def scan_into(
    folder: Path, shard: Shard, settings: ScanSettings, scorer: Scorer, on_progress: OnProgress
) -> None:
    """Scan a shard into its two files; each appears whole or not at all, the rows last."""
    with (
        atomic_write(rows_path(folder, shard)) as rows,
        atomic_write(errors_path(folder, shard)) as errors,
    ):
        scan_shard(shard, settings, scorer, rows, errors, on_progress)


def scan_shard(
    shard: Shard,
    settings: ScanSettings,
    scorer: Scorer,
    rows: BinaryIO,
    errors: BinaryIO,
    on_progress: OnProgress = lambda size, documents: None,
) -> None:
    """Write the rows of a shard as Parquet and its errors as JSONL.

    `on_progress` gets the bytes and documents done since it was last called.
    """
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(rows, settings.schema, compression="zstd") as writer:
        for block, done in _blocks(shard, settings.columns):
            documents = [item for item in block if isinstance(item, CorpusDocument)]
            for item in block:
                if isinstance(item, Unreadable):
                    if settings.strict:
                        raise strict_error(item)
                    errors.write(error_line(item))
            waiting.append(_rows(documents, scorer, settings.schema))
            if sum(batch.num_rows for batch in waiting) >= ROW_GROUP:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
            on_progress(done, len(documents))
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))


def error_line(unreadable: Unreadable) -> bytes:
    """Return what errors.jsonl says of something that could not be scored."""
    return json.dumps(unreadable._asdict()).encode() + b"\n"


def strict_error(unreadable: Unreadable) -> InputError:
    """Return what a strict scan ends with."""
    path, row, reason = unreadable
    place = path if row is None else f"{path}:{row}"
    return InputError(f"{place}: {reason} (without --strict it would only be listed)")


def unexpected_error(error: Exception, shard: Shard) -> DllmarkError:
    """Return an error that nobody foresaw, with its name, as it can travel between processes."""
    message = (str(error).splitlines() or [""])[0][:200]
    return DllmarkError(
        f"a worker failed on {shard.files} with {type(error).__name__}: {message} "
        f"(DLLMARK_TRACEBACK=1 with --workers 1 shows where). {CONTINUES}"
    )


def _blocks(
    shard: Shard, columns: Columns
) -> Iterator[tuple[list[CorpusDocument | Unreadable], int]]:
    """Yield the shard's documents in blocks, each with the bytes read since the one before."""
    block: list[CorpusDocument | Unreadable] = []
    characters = before = told = at = 0
    for piece in shard.pieces:

        def on_bytes(inside: int, before: int = before, size: int = piece.size) -> None:
            nonlocal at
            at = before + min(inside, size)  # a reader looks ahead

        for item in read_piece(piece, columns, on_bytes):
            block.append(item)
            characters += len(item.text) if isinstance(item, CorpusDocument) else 0
            if len(block) >= BLOCK_TEXTS or characters >= BLOCK_CHARACTERS:
                yield block, at - told
                block, characters, told = [], 0, at
        before += piece.size
        at = before
    yield block, at - told


def _rows(documents: list[CorpusDocument], scorer: Scorer, schema: pa.Schema) -> pa.RecordBatch:
    scores = scorer.score([document.text for document in documents])
    columns: list[Any] = [
        [document.path for document in documents],
        [document.row for document in documents],
        [document.id for document in documents],
        scores.verdict == Verdict.TOO_SHORT.value,
        scores.z,
        scores.p_value,
        scores.pairs,
        scores.key_id,
        [None if payload is None else str(payload) for payload in scores.payload],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=False)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
