"""The verbs of `dllmark attack` that estimate which pairs are green, and use that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dllmark.commands.attack_files import (
    Input,
    Output,
    Ratio,
    TextColumn,
    TokenizerName,
    check_files,
    edit_all,
    report,
)
from dllmark.commands.options import JsonOption, SeedOption, check_seed
from dllmark.terminal import err, print_json

if TYPE_CHECKING:
    import numpy as np

    from dllmark.relation.tokenizer import Ids, Tokenizer

EstimatesFile = Annotated[
    Path, typer.Option(help="What `dllmark attack steal` wrote.", show_default=False)
]


def steal_command(
    file: Input,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The npz file to write.", show_default=False)
    ],
    unmarked: Annotated[
        str | None,
        typer.Option(help="JSONL of unmarked texts to compare with, best of the same model."),
    ] = None,
    tokenizer: TokenizerName = "embedded",
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Estimate from marked texts, without the key, which pairs are green."""
    from dllmark.attacks.steal import check_enough, count_texts, estimate, save_estimates
    from dllmark.relation.tokenizer import load_tokenizer

    words = load_tokenizer(tokenizer)
    check_files(file, output)
    marked = _read_ids(file, text_column, words)
    check_enough(len(marked))
    others = None if unmarked is None else _read_ids(unmarked, text_column, words)
    estimates = estimate(
        count_texts(marked, words), None if others is None else count_texts(others, words)
    )
    save_estimates(estimates, output, words)
    facts = {
        "path": str(output), "texts": len(marked), "unmarked": len(others or ()),
        "pairs": len(estimates.pairs), "believed green": int((estimates.log_odds > 0).sum()),
    }  # fmt: skip
    if as_json:
        print_json(facts)
    else:
        err.print(
            f"{output}: {facts['pairs']} pairs, {facts['believed green']} believed green, "
            f"from {len(marked)} marked and {facts['unmarked']} unmarked texts"
        )


def forge_command(
    file: Annotated[
        str,
        typer.Argument(help="JSONL of texts whose words to follow, or -.", show_default=False),
    ],
    output: Output,
    estimates: EstimatesFile,
    texts: Annotated[int, typer.Option(help="How many texts to write.", min=1)] = 10,
    tokens: Annotated[int, typer.Option(help="How many tokens each has.", min=2)] = 200,
    seed: SeedOption = 0,
    tokenizer: TokenizerName = "embedded",
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Write texts that a detector may take for marked, with stolen colours."""
    import numpy as np

    from dllmark.attacks.forge import forge
    from dllmark.attacks.ngrams import NGrams
    from dllmark.attacks.records import write_all
    from dllmark.attacks.steal import load_estimates
    from dllmark.relation.tokenizer import load_tokenizer

    words = load_tokenizer(tokenizer)
    check_seed(seed)
    check_files(file, output)
    stolen = load_estimates(estimates, words)
    table = NGrams(_read_ids(file, text_column, words), words.vocab_size)
    forged = forge(stolen, table, texts, tokens, np.random.default_rng(seed))
    attack = {"name": "forge", "tokens": tokens, "seed": seed}
    lines = ({"text": words.decode(ids), "attack": attack} for ids in forged)
    count = write_all(lines, output)
    report(output, count, attack, as_json)


def scrub_command(
    file: Input,
    output: Output,
    estimates: EstimatesFile,
    unmarked: Annotated[
        str, typer.Option(help="JSONL of texts that show which words fit.", show_default=False)
    ],
    ratio: Ratio = 0.2,
    seed: SeedOption = 0,
    tokenizer: TokenizerName = "embedded",
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Replace the tokens whose pairs are believed green, by others that fit."""
    from dllmark.attacks.ngrams import NGrams
    from dllmark.attacks.scrub import scrub
    from dllmark.attacks.steal import load_estimates
    from dllmark.relation.tokenizer import load_tokenizer

    words = load_tokenizer(tokenizer)
    stolen = load_estimates(estimates, words)
    table = NGrams(_read_ids(unmarked, text_column, words), words.vocab_size)

    def change(text: str, rng: np.random.Generator) -> str:
        return words.decode(scrub(words.encode(text), ratio, stolen, table, rng))

    edit_all("scrub", file, output, ratio, seed, text_column, change, as_json)


def _read_ids(path: str, text_column: str, tokenizer: Tokenizer) -> list[Ids]:
    """Return the tokens of every text of a file."""
    from dllmark.attacks.records import read_records

    return tokenizer.encode_many([record.text for record in read_records(path, text_column)])
