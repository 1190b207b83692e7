"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dllmark.errors import InputError

KeysOption = Annotated[
    list[Path],
    typer.Option(
        "--key",
        envvar="DLLMARK_KEY",
        help="A key file; repeat it to try several keys.",
        show_default=False,
    ),
]
OneKeyOption = Annotated[
    list[Path],  # of which `only_key` takes the only one: typer would silently take the last
    typer.Option("--key", envvar="DLLMARK_KEY", help="The key file.", show_default=False),
]
TokenizersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tokenizer",
        help="Where a key's tokenizer is now, if not where the key says; repeatable.",
    ),
]
ScoringOption = Annotated[
    Literal["unique", "all"],
    typer.Option(help="Score each distinct pair once, or every pair as in the paper."),
]
NormalizeOption = Annotated[
    bool,
    typer.Option("--normalize", help="Undo invisible characters and lookalike letters first."),
]
KeyModelOption = Annotated[
    str,
    typer.Option(
        help="Whose tokenizer the key is for: `embedded`, a tokenizer.json or a folder with one, "
        "or a model on the hub."
    ),
]
GammaOption = Annotated[float, typer.Option(help="The share of green pairs, in (0, 1).")]
NoteOption = Annotated[str, typer.Option(help="A remark to keep in the file.")]
SeedOption = Annotated[int, typer.Option(help="The same seed gives the same texts.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def only_key(paths: list[Path], command: str) -> Path:
    """Return the key file of a command that takes one."""
    if len(paths) != 1:
        raise InputError(f"{command} works with one key, and {len(paths)} are given")
    return paths[0]


def check_seed(seed: int) -> None:
    """Raise `InputError` for a seed that numpy and torch do not take."""
    if seed < 0:
        raise InputError(f"seed is at least 0; got {seed}")
