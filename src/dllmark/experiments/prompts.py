"""Prompts, and what people wrote there: from a JSONL file, or from a dataset on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dllmark.errors import InputError, require
from dllmark.experiments.settings import Dataset
from dllmark.files import parse_record, read_lines
from dllmark.relation.tokenizer import Tokenizer

PREFIX = 30
"""The tokens of a C4 document that are given as a prompt."""

HUB = "hf:"
"""What a dataset on the hub starts with: hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT."""


def read_c4(source: str, tokenizer: Tokenizer, count: int) -> Dataset:
    """Return the first 30 tokens of documents as prompts, and how they go on.

    >>> read_c4("hf:allenai/c4:en:validation", load_tokenizer("embedded"), 500)  # doctest: +SKIP
    """
    encoded = tokenizer.encode_many([row["text"] for row in _rows(source, ["text"], count)])
    return Dataset(
        name="C4",
        prompts=[tokenizer.decode(ids[:PREFIX]) for ids in encoded],
        truths=[tokenizer.decode(ids[PREFIX:]) for ids in encoded],
        chat=False,
    )


def read_eli5(source: str, count: int) -> Dataset:
    """Return questions as prompts, and an answer to each."""
    rows = _rows(source, ["question", "answer"], count)
    return Dataset(
        name="ELI5",
        prompts=[row["question"] for row in rows],
        truths=[row["answer"] for row in rows],
        chat=True,
    )


def read_field(source: str, name: str, count: int) -> list[str]:
    """Return one field of every line of a file, or of so many rows of a dataset on the hub."""
    most = count if source.startswith(HUB) else None
    return [row[name] for row in _rows(source, [name], most)]


def _rows(source: str, fields: list[str], count: int | None) -> list[dict[str, str]]:
    """Return the first rows of a source, or all, which have these fields."""
    if source.startswith(HUB):
        rows = _hub_rows(source, fields, count)
    else:
        rows = _file_rows(source, fields, count)
    if count is not None and len(rows) < count:
        raise InputError(
            f"{source} has {len(rows)} rows, fewer than {count} samples: lower --samples"
        )
    return rows


def _file_rows(path: str, fields: list[str], count: int | None) -> list[dict[str, str]]:
    """Return the first lines of a JSONL file; each must have the fields."""
    rows = []
    for number, line in islice(read_lines(path), count):
        row = parse_record(line, f"{path}:{number}", *fields)
        for name in fields:
            if not _is_text(row[name]):
                raise InputError(f'{path}:{number}: "{name}" is empty')
        rows.append(row)
    return rows


def _hub_rows(source: str, fields: list[str], count: int | None) -> list[dict[str, str]]:
    """Return the first rows of a dataset on the hub, those where a field is empty passed over."""
    rows: list[dict[str, str]] = []
    for row in _stream(source):
        for name in fields:
            if name not in row:
                raise InputError(
                    f'{source} has the columns {", ".join(row)} and no "{name}": choose another '
                    "dataset, or write a JSONL file from it"
                )
        if all(_is_text(row[name]) for name in fields):
            rows.append(row)
        if len(rows) == count:
            break
    return rows


def _stream(source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset; only what is read of it is downloaded, and none of it is run."""
    name, config, split, *more = [*source.removeprefix(HUB).split(":"), "", ""]
    if not name or any(more):
        raise InputError(f"{source} names no dataset: write {HUB}NAME:CONFIG:SPLIT")
    require("a dataset of the hub", "eval", "datasets")
    import datasets

    datasets.disable_progress_bars()
    try:
        yield from datasets.load_dataset(
            name, config or None, split=split or "train", streaming=True
        )
    except Exception as error:  # offline, unknown, private, damaged: the library has many classes
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise InputError(
            f"cannot read {source} ({type(error).__name__}: {reason}): check the name, the config, "
            "the split and the connection, or give a JSONL file"
        ) from None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
