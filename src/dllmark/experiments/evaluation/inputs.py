"""What a report is made from: files of texts, by family, and their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllmark.attacks.records import Record, read_records
from dllmark.errors import InputError, MismatchError
from dllmark.files import reading
from dllmark.relation.key import Identity

FAMILY_FIELDS = ("kind", "source")
"""What names the family of a text, in this order; else it is the name of its file."""

MOST_FAMILIES = 50
"""A field with more values, or a value for each text, says where it is from, not of what kind."""


@dataclass(frozen=True)
class InputFile:
    """A file that was read: what for, its name without its folder, its hash, and its lines.

    A file of a model has no lines to count: its `rows` are None.
    """

    purpose: str
    name: str
    sha256: str
    rows: int | None


@dataclass(frozen=True)
class Sample:
    """A text of the model, and the prompt it was written for where that is known."""

    text: str
    prompt: str | None = None


def input_file(
    purpose: str, path: str, rows: int | None, on_read: Callable[[int], None] = lambda size: None
) -> InputFile:
    """Return what a report says of a file; `on_read` hears of the bytes of each piece."""
    digest = hashlib.sha256()
    with reading(path), Path(path).open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            on_read(len(piece))
    return InputFile(purpose, Path(path).name, digest.hexdigest(), rows)


def read_nulls(paths: Sequence[str]) -> tuple[dict[str, list[str]], list[InputFile]]:
    """Return the texts that carry no mark, by family, and the files they are from."""
    families: dict[str, list[str]] = {}
    files = []
    for path in paths:
        records = _records(path)
        for record in records:
            if record.entries.get("watermark") is not None:
                raise InputError(
                    f"{path}:{record.line}: this text is marked; nulls are texts without a mark"
                )
        field = _family_field(records)
        for record in records:
            family = record.entries[field] if field else Path(path).name
            families.setdefault(family, []).append(record.text)
        files.append(input_file("nulls", path, len(records)))
    return families, files


def read_marked(path: str, identity: Identity) -> tuple[list[Sample], InputFile, dict[str, Any]]:
    """Return texts that the key has marked, and the settings that all of them say they have.

    A text that names another key is refused.
    """
    records = _records(path)
    for record in records:
        claimed = record.entries.get("watermark")
        if isinstance(claimed, dict):
            try:
                identity.check_claim(claimed)
            except MismatchError as error:
                raise MismatchError(f"{path}:{record.line}: {error}") from None
        elif "watermark" in record.entries:
            raise InputError(
                f"{path}:{record.line}: this text says that it carries no mark; give it with "
                "--unmarked"
            )
    first = records[0].entries.get("settings")
    alike = all(record.entries.get("settings") == first for record in records)
    settings = first if alike and isinstance(first, dict) else {}
    samples = [_sample(record) for record in records]
    return samples, input_file("marked", path, len(records)), settings


def read_unmarked(path: str) -> tuple[list[Sample], InputFile]:
    """Return texts that the same model wrote without a mark."""
    records = _records(path)
    for record in records:
        if record.entries.get("watermark") is not None:
            raise InputError(f"{path}:{record.line}: this text is marked; give it with --marked")
    return [_sample(record) for record in records], input_file("unmarked", path, len(records))


@dataclass(frozen=True)
class Attacked:
    """Marked texts after an attack made elsewhere: its name, and its strength if it has one."""

    name: str
    strength: float | None
    texts: list[str]


def read_attacked(path: str) -> tuple[Attacked, InputFile]:
    """Return the texts of a file that `dllmark attack` wrote."""
    records = _records(path)
    for record in records:
        attack = record.entries.get("attack")
        if not isinstance(attack, dict) or not isinstance(attack.get("name"), str):
            raise InputError(
                f'{path}:{record.line}: no "attack" with a "name": give what `dllmark attack` wrote'
            )
    first = records[0].entries["attack"]
    name, ratio = " ".join(_names(first)), first.get("ratio")
    if any(" ".join(_names(one.entries["attack"])) != name for one in records):
        raise InputError(f"{path} holds several attacks: give a file for each")
    strength = float(ratio) if isinstance(ratio, int | float) else None
    attacked = Attacked(name, strength, [record.text for record in records])
    return attacked, input_file("attacked", path, len(records))


def _names(attack: dict[str, Any]) -> list[str]:
    """Return what an attack is called: its name, by which model, and what was done before it."""
    model, before = attack.get("model"), attack.get("after")
    names = [str(attack.get("name")), *([f"by {model}"] if model else [])]
    return [*names, "after", *_names(before)] if isinstance(before, dict) else names


def paired(marked: list[Sample], unmarked: list[Sample]) -> list[tuple[Sample, Sample]]:
    """Return the texts of the same prompts, unmarked and marked.

    Where a prompt stands several times, its texts are paired in order.

    >>> paired([Sample("m", "p"), Sample("n")], [Sample("u", "q"), Sample("v", "p")])
    [(Sample(text='v', prompt='p'), Sample(text='m', prompt='p'))]
    """
    waiting: dict[str, list[Sample]] = {}
    for sample in unmarked:
        if sample.prompt is not None:
            waiting.setdefault(sample.prompt, []).append(sample)
    return [
        (waiting[sample.prompt].pop(0), sample)
        for sample in marked
        if sample.prompt is not None and waiting.get(sample.prompt)
    ]


def _records(path: str) -> list[Record]:
    if path == "-":
        raise InputError("a report names its inputs by their hashes: give files, not -")
    return list(read_records(path))


def _family_field(records: list[Record]) -> str | None:
    """Return the first field that every line has and that sorts them into a few families."""
    for field in FAMILY_FIELDS:
        values = [record.entries.get(field) for record in records]
        kinds = len(set(map(str, values)))
        few = kinds <= MOST_FAMILIES and 2 * kinds <= len(values)
        if few and all(isinstance(value, str) and value for value in values):
            return field
    return None


def _sample(record: Record) -> Sample:
    prompt = record.entries.get("prompt")
    return Sample(record.text, prompt if isinstance(prompt, str) else None)
