"""Which files of a model wrote the texts of a report: their hashes, kept beside the texts.

A name does not say it: a folder or a repository may hold other weights tomorrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from dllmark.errors import InputError
from dllmark.experiments.evaluation.inputs import InputFile, input_file
from dllmark.experiments.evaluation.measures import OnDone
from dllmark.files import atomic_write, reading, writing

KEPT = "model.sha256"
"""Where a report's folder keeps the hashes, as `sha256sum` writes them and can check them."""

MEGABYTE = 1_000_000


def hashed_model(
    files: Sequence[Path], on_done: OnDone = lambda done, total: None
) -> list[InputFile]:
    """Return what a report says of a model's files; `on_done` hears of the megabytes read."""
    with reading("the model"):
        total = sum(path.stat().st_size for path in files)
    done = 0

    def on_read(size: int) -> None:
        nonlocal done
        done += size
        on_done(math.ceil(done / MEGABYTE), math.ceil(total / MEGABYTE))

    return [input_file("model", str(path), None, on_read) for path in files]


def check_model(folder: Path, model: Sequence[InputFile]) -> None:
    """Keep a model's hashes in a report's folder; where it has texts, they must be there already.

    Raise `InputError` where the texts were written with other files, or nothing says with which.
    """
    path, now = folder / KEPT, [f"{one.sha256}  {one.name}" for one in model]
    with reading(folder):
        begun = any(texts.stat().st_size for texts in folder.glob("texts/*/*.jsonl"))
        known = path.read_text("utf-8", "replace").splitlines() if path.exists() else None
    if not begun:
        with writing(path), atomic_write(path) as file:
            file.writelines(f"{line}\n".encode() for line in now)
    elif known is None:
        raise InputError(
            f"{path} is not there, so nothing says which weights wrote the texts in {folder}: "
            "give another output folder, or these texts as --marked and --unmarked"
        )
    elif changed := {line.partition("  ")[2] for line in {*known} ^ {*now}}:
        raise InputError(
            f"{min(changed)} is not the one that wrote the texts in {folder} (files of the model "
            f"that differ from {path}: {len(changed)}): give another output folder, or the model "
            "that wrote them"
        )
