"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dllmark.errors import InputError

PAYLOAD_BITS = 16

KeysOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--key",
        help="A key file; repeat it to try several keys. Else DLLMARK_KEY.",
        show_default=False,
    ),
]
OneKeyOption = Annotated[
    list[Path] | None,  # of which `one_key` takes the only one: typer would silently take the last
    typer.Option("--key", help="The key file. Else DLLMARK_KEY.", show_default=False),
]
KeyringOption = Annotated[
    Path | None,
    typer.Option("--keyring", help="A folder of keys (see `dllmark keys`).", show_default=False),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        help="Which keys of the ring may mark: those of this label and below it; else all.",
        show_default=False,
    ),
]
PassphraseOption = Annotated[
    bool,
    typer.Option(
        "--passphrase", help="Lock the key with a passphrase: asked for, or DLLMARK_PASSPHRASE."
    ),
]
PayloadOption = Annotated[
    str | None,
    typer.Option(
        "--payload",
        help="What the mark says: a number, or a text of the list in --payloads.",
        show_default=False,
    ),
]
FindPayloadOption = Annotated[
    bool,
    typer.Option("--payload", help="Look for texts with any payload of the key, and say which."),
]
PayloadBitsOption = Annotated[
    int | None,
    typer.Option(
        "--payload-bits",
        help="How long payloads are, 1 to 20 bits.",
        show_default=str(PAYLOAD_BITS),
    ),
]
PayloadListOption = Annotated[
    Path | None,
    typer.Option("--payloads", help="A file with one payload on each line, in place of numbers."),
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


def check_seed(seed: int) -> None:
    """Raise `InputError` for a seed that numpy and torch do not take."""
    if seed < 0:
        raise InputError(f"seed is at least 0; got {seed}")
