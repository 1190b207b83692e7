"""The verbs of `dllmark attack` in which another model rewrites the texts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dllmark.commands.attack_files import (
    Input,
    Output,
    Ratio,
    TextColumn,
    complete_all,
    read_all,
)
from dllmark.commands.options import JsonOption, SeedOption, check_seed
from dllmark.commands.sampler_options import TemperatureOption
from dllmark.sampling.settings import TEMPERATURE, check_temperature

if TYPE_CHECKING:
    from dllmark.attacks.endpoint import GivenUp
    from dllmark.attacks.records import Record

API_KEY = "DLLMARK_API_KEY"


def paraphrase_command(
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
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for an answer; a model on a CPU may need more.")
    ] = 120.0,
    times: Annotated[
        int, typer.Option(help="Paraphrase each text so many times in a row.", min=1)
    ] = 1,
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Have another model paraphrase each text, with the paper's prompt.

    The API key is read from the environment variable DLLMARK_API_KEY. A rerun continues the file.
    Of several times in a row, each is kept: OUT.round1.jsonl, OUT.round2.jsonl … beside OUT.jsonl,
    which holds the last.
    """
    from dllmark.attacks.endpoint import Endpoint

    api_key = os.environ.get(API_KEY) or None
    server = Endpoint(endpoint, model, max_requests, api_key=api_key, timeout=timeout)

    def answers(records: list[Record]) -> Iterator[tuple[int, str | GivenUp]]:
        return server.paraphrase((record.text for record in records), concurrency)

    records = read_all(file, output, text_column)
    for number in range(1, times + 1):
        path = output if number == times else round_path(output, number)
        complete_all({"name": "paraphrase", "model": model}, records, path, answers, as_json)
        if number < times:
            records = read_all(str(path), output, text_column)


def round_path(output: Path, number: int) -> Path:
    """Return where the texts of one round are kept beside the last.

    >>> str(round_path(Path("washed.jsonl"), 2))
    'washed.round2.jsonl'
    """
    return output.with_name(f"{output.stem}.round{number}{output.suffix}")


def dipper_command(
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
    complete_all(attack, read_all(file, output, text_column), output, answers, as_json)


def redenoise_command(
    file: Input,
    output: Output,
    ratio: Ratio = 0.3,
    model: Annotated[
        str, typer.Option(help="A diffusion model: `embedded`, a folder, or one on the hub.")
    ] = "embedded",
    temperature: TemperatureOption = TEMPERATURE,
    batch: Annotated[int, typer.Option(help="Texts filled together.", min=1)] = 8,
    device: Annotated[str, typer.Option(help="Where the model runs: auto, cpu, or cuda.")] = "auto",
    seed: SeedOption = 0,
    text_column: TextColumn = "text",
    as_json: JsonOption = False,
) -> None:
    """Mask a share of the tokens again, and let an unmarked diffusion model fill them in.

    A rerun continues the file.
    """
    from dllmark.attacks.tokens import check_ratio

    check_ratio(ratio)
    check_seed(seed)
    check_temperature(temperature)
    records = read_all(file, output, text_column)

    def answers(missing: list[Record]) -> Iterator[tuple[int, str]]:
        if not missing:
            return
        from dllmark.attacks.redenoise import redenoise
        from dllmark.models.loading import load_model
        from dllmark.sampling.infill import infill

        loaded = load_model(model, device=device)
        yield from redenoise(
            records, missing, loaded.tokenizer, partial(infill, loaded, temperature=temperature),
            ratio, longest=loaded.config.max_length, seed=seed, batch=batch,
        )  # fmt: skip

    attack = {
        "name": "redenoise", "ratio": ratio, "model": model,
        "temperature": temperature, "batch": batch, "seed": seed,
    }  # fmt: skip
    complete_all(attack, records, output, answers, as_json)
