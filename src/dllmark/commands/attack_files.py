"""What the verbs of `dllmark attack` share: options, files in, files out, and what is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dllmark.commands.options import check_seed
from dllmark.errors import DllmarkError, InputError
from dllmark.terminal import err, print_error, print_json

if TYPE_CHECKING:
    import numpy as np

    from dllmark.attacks.records import Answers, Record

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


def edit_all(
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
    check_files(file, output)
    attack = {"name": name, "ratio": ratio, "seed": seed}
    count = attack_all(read_records(file, text_column), output, attack, change, seed)
    report(output, count, attack, as_json)


def report(output: Path, count: int, attack: dict[str, Any], as_json: bool) -> None:
    """Say how many texts were written, and by which attack."""
    if as_json:
        print_json({"path": str(output), "texts": count, "attack": attack})
    else:
        err.print(f"{output}: {count} texts written")


def read_all(file: str, output: Path, text_column: str) -> list[Record]:
    """Return the texts of a file, which is not the one to write."""
    from dllmark.attacks.records import read_records

    check_files(file, output)
    return list(read_records(file, text_column))


def complete_all(
    attack: dict[str, Any],
    records: list[Record],
    output: Path,
    answers: Answers,
    as_json: bool,
) -> None:
    """Have the texts rewritten that the output lacks, and say how many there were."""
    from dllmark.attacks.records import complete

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


def check_files(file: str, output: Path) -> None:
    """Refuse to write over the input; a missing file is told where it is opened."""
    try:
        same = file != "-" and output.samefile(file)
    except OSError:
        return
    if same:
        raise InputError(f"{output} is the input: give another output file")
