"""Texts in, attacked texts out: lines of JSON that keep all else they hold.

An edit takes seconds, so its file appears when it is complete. What another model rewrites takes
long and may cost money, so each text is appended when it comes, and a rerun asks for the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.attacks.endpoint import GivenUp
from dllmark.errors import InputError
from dllmark.files import (
    append_line,
    atomic_write,
    input_name,
    only_writer_of,
    parse_record,
    read_lines,
    reading,
    whole_lines,
    writing,
)
from dllmark.terminal import progress_bar

Answers = Callable[[list["Record"]], Iterator[tuple[int, str | GivenUp]]]


@dataclass(frozen=True)
class Record:
    """The text of one line, where it stands, and all that the line holds."""

    line: int
    text: str
    entries: dict[str, Any]
    field: str

    def attacked(self, text: str, attack: dict[str, Any]) -> dict[str, Any]:
        """Return the line with another text, and what was done to it.

        The ids of the old text are dropped; an attack before this one is kept under "after".

        >>> Record(1, "a", {"text": "a", "ids": [4]}, "text").attacked("b", {"name": "x"})
        {'text': 'b', 'attack': {'name': 'x'}}
        """
        kept = {name: value for name, value in self.entries.items() if name != "ids"}
        if "attack" in kept:
            attack = {**attack, "after": kept.pop("attack")}
        return {**kept, self.field: text, "attack": attack}

    def provenance(self, attack: dict[str, Any]) -> dict[str, Any]:
        """Return an attack with which line it was done to, and a hash of the text there."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        return {**attack, "line": self.line, "of": digest}


def read_records(path: str, field: str = "text") -> Iterator[Record]:
    """Yield the lines of a JSONL file: objects with a string under `field`, or just strings."""
    for number, line in read_lines(path):
        entries = parse_record(line, f"{input_name(path)}:{number}", field)
        yield Record(number, entries[field], entries, field)


def attack_all(
    records: Iterable[Record],
    output: Path,
    attack: dict[str, Any],
    change: Callable[[str, np.random.Generator], str],
    seed: int,
) -> int:
    """Write every record with its text changed, and return how many there were.

    What happens to a text depends on the seed and its line, not on the other texts.
    """
    return write_all(
        (
            record.attacked(change(record.text, np.random.default_rng([seed, record.line])), attack)
            for record in records
        ),
        output,
    )


def write_all(lines: Iterable[dict[str, Any]], output: Path) -> int:
    """Write lines to a file that appears when it is complete, and return how many there were."""
    count = 0
    with (
        only_writer_of(output),
        writing(output),
        atomic_write(output) as file,
        _bar("attacking") as advance,
    ):
        for line in lines:
            file.write(_line(line))
            count += 1
            advance()
    return count


def complete(
    records: list[Record],
    output: Path,
    attack: dict[str, Any],
    answers: Answers,
    others: Sequence[Record] = (),
) -> tuple[int, list[tuple[Record, GivenUp]]]:
    """Append to a file the records it lacks, as `answers` yields their new texts.

    Return how many lines it had before, and the records that were given up. At the end the lines
    are put in the order of the input. The file may also have `others`, of an earlier run.
    """
    given_up = []
    with only_writer_of(output):
        present, size = _present([*records, *others], output, attack)
        missing = [record for record in records if record.line not in present]
        with _bar("rewriting", len(missing)) as advance:
            for number, text in answers(missing):
                record = missing[number]
                if isinstance(text, GivenUp):
                    given_up.append((record, text))
                else:
                    line = _line(record.attacked(text, record.provenance(attack)))
                    with writing(output):
                        size = append_line(output, size, line)
                advance()
        _sort(output)
    return len(present), given_up


def _present(records: list[Record], output: Path, attack: dict[str, Any]) -> tuple[set[int], int]:
    """Return the lines of the input that a file already answers, and in how many bytes."""
    with reading(output):
        lines, size = whole_lines(output)
    expected = {record.line: record.provenance(attack) for record in records}
    present = set()
    for number, line in enumerate(lines, 1):
        done = _attack_of(line)
        at = done.get("line")
        if not isinstance(at, int) or done != expected.get(at):
            raise InputError(
                f"{output}:{number} is not of this run: "
                "give another output file, or remove this one"
            )
        present.add(at)
    return present, size


def _attack_of(line: bytes) -> dict[str, Any]:
    """Return what a line says was done to its text, an attack before that left out."""
    try:
        attack = json.loads(line)["attack"]
        return {name: value for name, value in attack.items() if name != "after"}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _sort(path: Path) -> None:
    """Put the lines of a file into the order of the input."""
    with writing(path):
        lines, _ = whole_lines(path)
        ordered = sorted(lines, key=lambda line: int(_attack_of(line)["line"]))
        if ordered != lines:
            with atomic_write(path) as file:
                file.writelines(line + b"\n" for line in ordered)


def _line(entries: dict[str, Any]) -> bytes:
    return json.dumps(entries).encode() + b"\n"


@contextmanager
def _bar(title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show how many texts are done, where standard error is a terminal."""
    with progress_bar() as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
