"""`dllmark attack`: one command for each attack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dllmark.commands.attack_files import (
    Input,
    Output,
    Ratio,
    TextColumn,
    TokenizerName,
    edit_all,
)
from dllmark.commands.attack_models import dipper_command, paraphrase_command, redenoise_command
from dllmark.commands.attack_stolen import forge_command, scrub_command, steal_command
from dllmark.commands.options import JsonOption, SeedOption

if TYPE_CHECKING:
    import numpy as np

app = typer.Typer(
    no_args_is_help=True,
    help="Attack marked texts: edit them, have models rewrite them, or steal the mark.",
)

OF_TOKENS = {
    "delete": "Remove a share of the tokens.",
    "insert": "Put random tokens between a share of the tokens.",
    "swap": "Exchange the places of a share of the tokens.",
    "substitute": "Put random tokens in place of a share of the tokens.",
}
OF_CHARACTERS = {
    "homoglyphs": "Replace letters by lookalikes of other scripts: a share of those that have one.",
    "zero-width": "Put an invisible character behind a share of the characters.",
    "case": "Change the case of the first letter of a share of the words.",
    "whitespace": "Replace a share of the spaces by other white space.",
    "truncate": "Cut off the last share of the words.",
}


def _of_tokens(name: str) -> Callable[..., None]:
    def command(
        file: Input,
        output: Output,
        ratio: Ratio = 0.1,
        seed: SeedOption = 0,
        tokenizer: TokenizerName = "embedded",
        text_column: TextColumn = "text",
        as_json: JsonOption = False,
    ) -> None:
        from dllmark.attacks.tokens import token_edit
        from dllmark.relation.tokenizer import load_tokenizer

        change = token_edit(name, ratio, load_tokenizer(tokenizer))
        edit_all(name, file, output, ratio, seed, text_column, change, as_json)

    return command


def _of_characters(name: str) -> Callable[..., None]:
    def command(
        file: Input,
        output: Output,
        ratio: Ratio = 0.1,
        seed: SeedOption = 0,
        text_column: TextColumn = "text",
        as_json: JsonOption = False,
    ) -> None:
        from dllmark.attacks.characters import TEXT_ATTACKS

        def change(text: str, rng: np.random.Generator) -> str:
            return TEXT_ATTACKS[name](text, ratio, rng)

        edit_all(name, file, output, ratio, seed, text_column, change, as_json)

    return command


for name, summary in OF_TOKENS.items():
    app.command(name, help=summary)(_of_tokens(name))
for name, summary in OF_CHARACTERS.items():
    app.command(name, help=summary)(_of_characters(name))


@app.command("paste")
def _paste(
    file: Input,
    output: Output,
    into: Annotated[
        str, typer.Option(help='JSONL of human texts ("text" in each line).', show_default=False)
    ],
    ratio: Annotated[
        float, typer.Option(help="The share of the result's words that are the marked text's.")
    ] = 0.25,
    seed: SeedOption = 0,
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Put each text, whole, somewhere into human text."""
    from dllmark.attacks.characters import paste
    from dllmark.attacks.records import read_records

    humans = [record.text for record in read_records(into)]

    def change(text: str, rng: np.random.Generator) -> str:
        return paste(text, ratio, rng, humans)

    edit_all("paste", file, output, ratio, seed, text_column, change, as_json)


@app.command("synonyms")
def _synonyms(
    file: Input,
    output: Output,
    wordnet: Annotated[
        Path,
        typer.Option(help="A folder with WordNet's database files.", show_default=False),
    ],
    ratio: Annotated[
        float, typer.Option(help="The share of the words that have a synonym to replace.")
    ] = 0.3,
    seed: SeedOption = 0,
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Replace words by synonyms."""
    from dllmark.attacks.synonyms import read_wordnet, replace_synonyms

    synonyms = read_wordnet(wordnet)

    def change(text: str, rng: np.random.Generator) -> str:
        return replace_synonyms(text, ratio, rng, synonyms)

    edit_all("synonyms", file, output, ratio, seed, text_column, change, as_json)


app.command("redenoise")(redenoise_command)
app.command("paraphrase")(paraphrase_command)
app.command("dipper")(dipper_command)
app.command("steal")(steal_command)
app.command("forge")(forge_command)
app.command("scrub")(scrub_command)
