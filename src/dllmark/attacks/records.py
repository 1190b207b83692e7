"""Texts in, attacked texts out: lines of JSON that keep all else they hold.

An attack on this machine takes seconds, so its file appears when it is complete. A paraphrase
takes long and may cost money, so each is appended when it comes, and a rerun asks for the others.
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
from dllmark.detection.documents import open_input
from dllmark.errors import InputError
from dllmark.files import append_line, atomic_write, whole_lines
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

    @property
    def digest(self) -> str:
        """What tells this text from others, short enough to store with what became of it."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def read_records(path: str, field: str = "text") -> Iterator[Record]:
    """Yield the lines of a JSONL file: objects with a string under `field`, or just strings."""
    name = "standard input" if path == "-" else path
    found = False
    with open_input(path) as file, _file_errors(f"cannot read {name}"):
        for number, line in enumerate(file, 1):
            if line.strip():
                found = True
                yield _record(line, number, field, name)
    if not found:
        raise InputError(f"{name} is empty: there is nothing to attack")


def _record(line: bytes, number: int, field: str, name: str) -> Record:
    try:
        entries = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise InputError(
            f'{name}:{number}: not a line of JSON in UTF-8: write each as {{"{field}": "..."}}'
        ) from None
    if isinstance(entries, str):
        entries = {field: entries}
    text = entries.get(field) if isinstance(entries, dict) else None
    if not isinstance(text, str):
        raise InputError(f'{name}:{number}: a line needs a string under "{field}"')
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{name}:{number}: the text holds lone surrogates, not valid Unicode")
    return Record(number, text, entries, field)


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
    count = 0
    with (
        _file_errors(f"cannot write {output}"),
        atomic_write(output) as file,
        _bar("attacking") as advance,
    ):
        for record in records:
            text = change(record.text, np.random.default_rng([seed, record.line]))
            file.write(_line(record.attacked(text, attack)))
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

    Return how many lines it held before, and the records that were given up. At the end the lines
    are put in the order of the input. The file may also hold `others`, of an earlier run.
    """
    held, size = _held([*records, *others], output, attack)
    lacking = [record for record in records if record.line not in held]
    given_up = []
    with _bar("paraphrasing", len(lacking)) as advance:
        for number, text in answers(lacking):
            record = lacking[number]
            if isinstance(text, GivenUp):
                given_up.append((record, text))
            else:
                done = {**attack, "line": record.line, "of": record.digest}
                with _file_errors(f"cannot write {output}"):
                    size = append_line(output, size, _line(record.attacked(text, done)))
            advance()
    _sort(output)
    return len(held), given_up


def _held(records: list[Record], output: Path, attack: dict[str, Any]) -> tuple[set[int], int]:
    """Return the lines of the input that a file already answers, and in how many bytes."""
    with _file_errors(f"cannot read {output}"):
        lines, size = whole_lines(output)
    if not output.parent.is_dir():
        raise InputError(f"cannot write {output}: make the folder {output.parent} first")
    expected = {
        record.line: {**attack, "line": record.line, "of": record.digest} for record in records
    }
    held = set()
    for number, line in enumerate(lines, 1):
        done = _attack_of(line)
        if done.get("line") not in expected or done != expected[done["line"]]:
            raise InputError(
                f"{output}:{number} is not of this run: "
                "give another output file, or remove this one"
            )
        held.add(done["line"])
    return held, size


def _attack_of(line: bytes) -> dict[str, Any]:
    """Return what a line says was done to its text, an attack before that left out."""
    try:
        attack = json.loads(line)["attack"]
        return {name: value for name, value in attack.items() if name != "after"}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _sort(path: Path) -> None:
    """Put the lines of a file into the order of the input."""
    if not path.exists():
        return
    with _file_errors(f"cannot write {path}"):
        lines = path.read_bytes().splitlines(keepends=True)
        ordered = sorted(lines, key=lambda line: int(_attack_of(line)["line"]))
        if ordered != lines:
            with atomic_write(path) as file:
                file.writelines(ordered)


def _line(entries: dict[str, Any]) -> bytes:
    return json.dumps(entries).encode() + b"\n"


@contextmanager
def _file_errors(problem: str) -> Iterator[None]:
    """Turn a file that cannot be read or written into an error that says so."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{problem}: {error.strerror}") from None


@contextmanager
def _bar(title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show how many texts are done, where standard error is a terminal."""
    with progress_bar() as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
