"""`dllmark attack`: one command for each attack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dllmark.commands.options import JsonOption, SeedOption, check_seed
from dllmark.errors import DllmarkError, InputError
from dllmark.terminal import err, print_error, print_json

if TYPE_CHECKING:
    import numpy as np

    from dllmark.attacks.endpoint import GivenUp
    from dllmark.attacks.records import Answers, Record
    from dllmark.relation.tokenizer import Ids, Tokenizer

API_KEY = "DLLMARK_API_KEY"

app = typer.Typer(no_args_is_help=True, help="Attack marks: edit texts, steal colours.")

Input = Annotated[str, typer.Argument(help="JSONL of texts, or - for input.", show_default=False)]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="The JSONL to write.", show_default=False)
]
Ratio = Annotated[float, typer.Option(help="The share to change, from 0 to 1.")]
TextColumn = Annotated[str, typer.Option(help="What the text of a line is called.")]
TokenizerName = Annotated[
    str,
    typer.Option(
        help="Whose tokens: `embedded`, a tokenizer.json or a folder with one, or a hub model."
    ),
]

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
        from dllmark.attacks.tokens import TOKEN_ATTACKS, ordinary
        from dllmark.relation.tokenizer import load_tokenizer

        words, edit = load_tokenizer(tokenizer), TOKEN_ATTACKS[name]
        vocabulary = ordinary(words)

        def change(text: str, rng: np.random.Generator) -> str:
            return words.decode(edit(words.encode(text), ratio, rng, vocabulary))

        _attack(name, file, output, ratio, seed, text_column, change, as_json)

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

        _attack(name, file, output, ratio, seed, text_column, change, as_json)

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

    _attack("paste", file, output, ratio, seed, text_column, change, as_json)


@app.command("paraphrase")
def _paraphrase(
    file: Input,
    output: Output,
    endpoint: Annotated[
        str,
        typer.Option(
            help="Where an OpenAI-compatible server answers, such as http://localhost:8000/v1.",
            show_default=False,
        ),
    ],
    model: Annotated[str, typer.Option(help="The model to ask for.", show_default=False)],
    max_requests: Annotated[
        int, typer.Option(help="Stop after so many requests, repeated ones included.")
    ] = 1000,
    concurrency: Annotated[int, typer.Option(help="Requests under way at a time.")] = 8,
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Have another model paraphrase each text, with the paper's prompt.

    The API key is read from the environment variable DLLMARK_API_KEY. A rerun continues the file.
    """
    from dllmark.attacks.endpoint import Endpoint

    server = Endpoint(endpoint, model, max_requests, api_key=os.environ.get(API_KEY) or None)

    def answers(records: list[Record]) -> Iterator[tuple[int, str | GivenUp]]:
        return server.paraphrase((record.text for record in records), concurrency)

    _complete({"name": "paraphrase", "model": model}, file, output, text_column, answers, as_json)


@app.command("dipper")
def _dipper(
    file: Input,
    output: Output,
    model: Annotated[
        str, typer.Option(help="A folder, or a model on the hub.")
    ] = "kalpeshk2011/dipper-paraphraser-xxl",
    tokenizer: Annotated[
        str | None, typer.Option(help="T5's tokenizer, if it is not with the model.")
    ] = None,
    lexical: Annotated[int, typer.Option(help="How much the words change: 0, 20 .. 100.")] = 20,
    order: Annotated[int, typer.Option(help="How much their order changes: 0, 20 .. 100.")] = 0,
    interval: Annotated[int, typer.Option(help="Sentences rewritten at a time.")] = 3,
    seed: SeedOption = 0,
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Have Dipper paraphrase each text, with the paper's settings.

    A rerun continues the file.
    """
    from dllmark.attacks.dipper import Dipper

    check_seed(seed)

    def answers(records: list[Record]) -> Iterator[tuple[int, str | GivenUp]]:
        if records:
            dipper = Dipper(
                model, tokenizer=tokenizer, lexical=lexical, order=order, interval=interval
            )
            for number, record in enumerate(records):
                yield number, dipper.paraphrase(record.text, seed + (record.line << 32))

    attack = {
        "name": "dipper", "model": model, "lexical": lexical, "order": order,
        "interval": interval, "seed": seed,
    }  # fmt: skip
    _complete(attack, file, output, text_column, answers, as_json)


EstimatesFile = Annotated[
    Path, typer.Option(help="What `dllmark attack steal` wrote.", show_default=False)
]


@app.command("steal")
def _steal(
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
    _check_files(file, output)
    marked = _read_ids(file, text_column, words)
    check_enough(len(marked))
    others = None if unmarked is None else _read_ids(unmarked, text_column, words)
    estimates = estimate(
        count_texts(marked, words), None if others is None else count_texts(others, words)
    )
    save_estimates(estimates, output, words)
    report = {
        "path": str(output), "texts": len(marked), "unmarked": len(others or ()),
        "pairs": len(estimates.pairs), "believed green": int((estimates.log_odds > 0).sum()),
    }  # fmt: skip
    if as_json:
        print_json(report)
    else:
        err.print(
            f"{output}: {report['pairs']} pairs, {report['believed green']} believed green, "
            f"from {len(marked)} marked and {report['unmarked']} unmarked texts"
        )


@app.command("forge")
def _forge(
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
    _check_files(file, output)
    stolen = load_estimates(estimates, words)
    table = NGrams(_read_ids(file, text_column, words), words.vocab_size)
    forged = forge(stolen, table, texts, tokens, np.random.default_rng(seed))
    attack = {"name": "forge", "tokens": tokens, "seed": seed}
    lines = ({"text": words.decode(ids), "attack": attack} for ids in forged)
    count = write_all(lines, output)
    _report(output, count, attack, as_json)


@app.command("scrub")
def _scrub(
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

    _attack("scrub", file, output, ratio, seed, text_column, change, as_json)


def _read_ids(path: str, text_column: str, tokenizer: Tokenizer) -> list[Ids]:
    """Return the tokens of every text of a file."""
    from dllmark.attacks.records import read_records

    return tokenizer.encode_many([record.text for record in read_records(path, text_column)])


def _attack(
    name: str,
    file: str,
    output: Path,
    ratio: float,
    seed: int,
    text_column: str,
    change: Callable[[str, np.random.Generator], str],
    as_json: bool,
) -> None:
    """Attack the texts of a file on this machine, and say how many there were."""
    from dllmark.attacks.records import attack_all, read_records
    from dllmark.attacks.tokens import check_ratio

    check_ratio(ratio)
    check_seed(seed)
    _check_files(file, output)
    attack = {"name": name, "ratio": ratio, "seed": seed}
    count = attack_all(read_records(file, text_column), output, attack, change, seed)
    _report(output, count, attack, as_json)


def _report(output: Path, count: int, attack: dict[str, Any], as_json: bool) -> None:
    """Say how many texts were written, and by which attack."""
    if as_json:
        print_json({"path": str(output), "texts": count, "attack": attack})
    else:
        err.print(f"{output}: {count} texts written")


def _complete(
    attack: dict[str, Any],
    file: str,
    output: Path,
    text_column: str,
    answers: Answers,
    as_json: bool,
) -> None:
    """Have the texts of a file paraphrased that the output lacks, and say how many there were."""
    from dllmark.attacks.records import complete, read_records

    _check_files(file, output)
    records = list(read_records(file, text_column))
    present, given_up = complete(records, output, attack, answers)
    for record, reason in given_up:
        print_error(f"line {record.line} has no paraphrase: {reason.reason}")
    written = len(records) - present - len(given_up)
    if as_json:
        print_json({
            "path": str(output), "texts": written, "already there": present,
            "given up": len(given_up), "attack": attack,
        })  # fmt: skip
    else:
        err.print(f"{output}: {written} written, {present} already there")
    if given_up:
        raise DllmarkError(
            f"{len(given_up)} of {len(records)} texts are missing: run again to ask for them"
        )


def _check_files(file: str, output: Path) -> None:
    """Refuse to write over the input; a missing file is told where it is opened."""
    try:
        same = file != "-" and output.samefile(file)
    except OSError:
        return
    if same:
        raise InputError(f"{output} is the input: give another output file")
