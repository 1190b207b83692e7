"""`dllmark keygen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dllmark.commands.key_options import new_passphrase
from dllmark.commands.options import (
    GammaOption,
    JsonOption,
    KeyModelOption,
    NoteOption,
    PassphraseOption,
)
from dllmark.errors import OutputError
from dllmark.terminal import out, print_json


def keygen(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The key file to write.", show_default=False)
    ],
    model: KeyModelOption = "embedded",
    gamma: GammaOption = 0.5,
    note: NoteOption = "",
    passphrase: PassphraseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a key file: it marks texts, and recognises them later."""
    from dllmark.relation.key import WatermarkKey, check_gamma
    from dllmark.relation.tokenizer import load_tokenizer

    check_gamma(gamma)
    key = WatermarkKey.generate(load_tokenizer(model).id, gamma=gamma, note=note)
    key.save(output, new_passphrase() if passphrase else None)
    try:
        if as_json:
            print_json({"path": str(output), **key.identity.to_dict()})
            return
        of = f"key {key.id}, gamma {key.gamma}, tokenizer {key.tokenizer.name}"
        out.print(f"wrote {output}: {of}")
        out.print("Keep it secret and keep a copy: without it no text it marked can be recognised.")
    except OutputError as error:
        raise OutputError(f"{error}; the key is written: {output}") from None
