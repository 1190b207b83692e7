"""By what, when and on what the texts of a folder were written: `runs.jsonl`, a line a file.

A report may be made much later and elsewhere, and must still say it.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from dllmark import __version__
from dllmark.errors import InputError
from dllmark.files import atomic_write, whole_lines


@dataclass(frozen=True)
class Written:
    """Texts of one file that one run wrote, and how long it took."""

    prompts: str
    setting: str
    texts: int
    seconds: float
    model: str
    tokens: int
    suppress_end: bool
    block: int
    batch: int
    hardware: str
    command: str
    date: str
    software: str
    cache: str = "none"
    apart: bool = False
    no_repeat_ngram: int = 0
    dtype: str = ""

    @property
    def options(self) -> str:
        """What `reproduce` must be told to write such texts, beside the model."""
        ends = "--suppress-end" if self.suppress_end else "without --suppress-end"
        apart = "--apart" if self.apart else "without --apart"
        shape = f"--tokens {self.tokens} --block {self.block} --cache {self.cache}"
        repeats = f"--no-repeat-ngram {self.no_repeat_ngram}"
        return f"{shape} {repeats} {apart} {ends}"


class Runs:
    """The notes of a folder. Each is brought up to date after every batch, so a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines, _ = whole_lines(path)
        try:
            self.notes = [Written(**json.loads(line)) for line in lines]
        except (ValueError, TypeError):
            raise InputError(f"{path} is damaged: remove it, or give another folder") from None
        self._open = False

    def add(self, new: Written) -> None:
        """Note texts that were just written; those of one file by this run are one line."""
        last = self.notes[-1] if self._open else None
        if last and (last.prompts, last.setting) == (new.prompts, new.setting):
            texts, seconds = last.texts + new.texts, last.seconds + new.seconds
            self.notes[-1] = replace(new, texts=texts, seconds=round(seconds, 3))
        else:
            self.notes.append(new)
            self._open = True
        with atomic_write(self._path) as file:
            file.writelines(json.dumps(asdict(one)).encode() + b"\n" for one in self.notes)

    def of(self, prompts: str, setting: str) -> list[Written]:
        """Return the notes of one file."""
        return [one for one in self.notes if (one.prompts, one.setting) == (prompts, setting)]


def summary(notes: Collection[Written]) -> str:
    """Return in words how texts were written: so many in so long, on what and by which command."""
    groups: dict[tuple[str, ...], list[Written]] = {}
    for one in notes:
        place = (one.hardware, one.software, one.date, f"by `{one.command}`")
        groups.setdefault(place, []).append(one)
    parts = []
    for origin, same in groups.items():
        texts, seconds = sum(one.texts for one in same), sum(one.seconds for one in same)
        time = timedelta(seconds=round(seconds))
        parts.append(f"{texts:,} texts in {time} on {', '.join(origin)}")
    return "; ".join(parts) or "not noted"


def step_seconds(notes: Collection[Written], steps: int) -> float | None:
    """Return how long a step of a batch took, of texts that are written in so many steps.

    The last batch may have fewer texts than the others. It is None where nothing was noted.
    """
    batches = sum(math.ceil(note.texts / note.batch) for note in notes)
    return sum(note.seconds for note in notes) / (batches * steps) if batches else None


def today() -> str:
    """Return the date."""
    return datetime.now(timezone.utc).date().isoformat()


def software() -> str:
    """Return the versions that decide what is written."""
    return f"torch {version('torch')}, dllmark {revision()}"


@lru_cache(maxsize=1)
def revision() -> str:
    """Return the version of dllmark, and its commit where it runs from a checkout."""
    here, git = Path(__file__).parent, shutil.which("git")
    if git is None:
        return __version__

    def ask(*arguments: str) -> str:
        done = subprocess.run(  # noqa: S603  the program is git, and nothing in it is a user's
            [git, "-C", str(here), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    # Installed below another project's checkout, git would describe that one.
    ours = ask("ls-files", "--error-unmatch", "__init__.py")
    commit = ask("describe", "--always", "--dirty") if ours else ""
    return f"{__version__} ({commit})" if commit else __version__
