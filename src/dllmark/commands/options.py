"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dllmark.errors import InputError
from dllmark.marking.strategies import DEFAULT, JOINT_DEFAULT, ORDER_DEFAULT, STRATEGIES

PAYLOAD_BITS = 16

KeysOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--key",
        help="A key file. Repeat the option to try several keys. Without it, DLLMARK_KEY names the "
        "file.",
        show_default=False,
    ),
]
OneKeyOption = Annotated[
    list[Path] | None,  # of which `one_key` takes the only one: typer would silently take the last
    typer.Option(
        "--key", help="The key file. Without this option, DLLMARK_KEY names it.", show_default=False
    ),
]
KeyringOption = Annotated[
    Path | None,
    typer.Option("--keyring", help="A folder of keys (see `dllmark keys`).", show_default=False),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        help="Mark with the ring's keys under this label only. Without it, with any.",
        show_default=False,
    ),
]
PassphraseOption = Annotated[
    bool,
    typer.Option(
        "--passphrase",
        help="Lock the key with a passphrase: you are asked for it, unless DLLMARK_PASSPHRASE "
        "holds it.",
    ),
]
PayloadOption = Annotated[
    str | None,
    typer.Option(
        "--payload",
        help="What to hide in the text: a number, or an entry of the list in --payloads.",
        show_default=False,
    ),
]
FindPayloadOption = Annotated[
    bool,
    typer.Option("--payload", help="Look for any payload of the key, and name the one found."),
]
PayloadBitsOption = Annotated[
    int | None,
    typer.Option(
        "--payload-bits",
        help="The length of payloads in bits, from 1 to 20.",
        show_default=str(PAYLOAD_BITS),
    ),
]
PayloadListOption = Annotated[
    Path | None,
    typer.Option(
        "--payloads", help="A file of possible payloads, one on each line, instead of numbers."
    ),
]
TokenizersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tokenizer",
        help="Where a key's tokenizer is, if it is no longer where the key says. Repeatable.",
    ),
]
ScoringOption = Annotated[
    Literal["unique", "all"],
    typer.Option(help="Score each distinct pair once, or every pair as in the paper."),
]
NormalizeOption = Annotated[
    bool,
    typer.Option(
        "--normalize", help="First remove invisible characters, and replace lookalike letters."
    ),
]
KeyModelOption = Annotated[
    str,
    typer.Option(
        help="The model whose tokenizer the key is for: `embedded`, a tokenizer.json, a folder "
        "with one, or a model on the hub."
    ),
]
GammaOption = Annotated[
    float, typer.Option(help="The share of pairs of tokens that are green, between 0 and 1.")
]
NoteOption = Annotated[str, typer.Option(help="A note to keep in the file.")]
SeedOption = Annotated[int, typer.Option(help="The same seed gives the same texts.")]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        help=f"One of {', '.join(STRATEGIES)}. Without it, {JOINT_DEFAULT.name} where the sampler "
        f"has LLaDA's low_confidence order (with a payload, joint), {ORDER_DEFAULT.name} in "
        f"LLaDA's other orders and Dream's (with a payload, and elsewhere, {DEFAULT.name})."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_seed(seed: int) -> None:
    """Raise `InputError` for a seed that numpy and torch do not take."""
    if seed < 0:
        raise InputError(f"seed is at least 0; got {seed}")
