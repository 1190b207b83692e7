"""`dllmark reproduce`: a table or figure of the paper, on any model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dllmark.attacks.command import API_KEY
from dllmark.errors import InputError
from dllmark.terminal import err, print_json

if TYPE_CHECKING:
    from dllmark.attacks.endpoint import GivenUp
    from dllmark.attacks.records import Record
    from dllmark.experiments.lab import Lab
    from dllmark.experiments.report import Report
    from dllmark.experiments.specs import Paraphraser
    from dllmark.models.loading import Model

MOST_REQUESTS = 20_000
"""To the endpoint in one run of table2, which has four texts a prompt."""

Name = Literal[
    "table1", "table2", "table3", "figure2", "figure3", "examples", "frontier", "nulls"
]  # fmt: skip


def reproduce(
    experiment: Annotated[Name, typer.Argument(help="What to reproduce.")],
    out: Annotated[
        Path, typer.Option(help="A folder for texts, keys and reports; a rerun goes on there.")
    ],
    model: Annotated[
        str, typer.Option(help="`embedded`, a folder, or a model on the hub.")
    ] = "embedded",
    c4: Annotated[Path | None, typer.Option(help='JSONL of documents with "text".')] = None,
    eli5: Annotated[
        Path | None, typer.Option(help='JSONL of questions with "question" and "answer".')
    ] = None,
    samples: Annotated[int, typer.Option(help="Prompts of each kind.")] = 500,
    tokens: Annotated[int, typer.Option(help="Tokens written for each.")] = 256,
    scored: Annotated[int, typer.Option(help="Tokens scored; shorter texts are left out.")] = 200,
    max_repeats: Annotated[
        float, typer.Option(help="Leave out prompts whose unmarked text repeats more bigrams.")
    ] = 0.5,
    batch: Annotated[int, typer.Option(help="Texts written together.")] = 8,
    judge: Annotated[
        str, typer.Option(help="For perplexity: `smollm2`, a folder, a hub id, or `none`.")
    ] = "smollm2",
    endpoint: Annotated[
        str | None, typer.Option(help="table2: an OpenAI-compatible endpoint that paraphrases.")
    ] = None,
    endpoint_model: Annotated[str, typer.Option(help="The endpoint's model.")] = "gpt-5-nano",
    dipper: Annotated[
        str | None, typer.Option(help="table2: the folder or hub id of Dipper's weights.")
    ] = None,
    keys: Annotated[int, typer.Option(help="nulls: how many random keys.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Write, score and report a table or figure of the paper, or the frontier of all strategies.

    Each text is kept when it is written: the same command again goes on where it was stopped.
    `nulls` writes nothing: it scores the documents and answers of the files with random keys.
    """
    from dllmark.experiments.lab import Lab
    from dllmark.experiments.settings import Protocol, read_c4, read_eli5
    from dllmark.models.loading import load_model
    from dllmark.quality.perplexity import load_judge

    if c4 is None and eli5 is None:
        raise InputError("give prompts: --c4 FILE, --eli5 FILE, or both")
    if batch < 1:
        raise InputError(f"batch is at least 1; got {batch}")
    if experiment == "nulls":
        _publish(_nulls(model, c4, eli5, keys), out, experiment, as_json)
        return
    protocol = Protocol(samples, tokens, scored, most_repeats=max_repeats)
    loaded = load_model(model)
    datasets = [read_c4(c4, loaded.tokenizer, samples)] if c4 else []
    datasets += [read_eli5(eli5, samples)] if eli5 else []
    needs_judge = experiment not in ("table1", "table2", "figure2") and judge != "none"
    with _progress() as on_batch:
        lab = Lab(
            loaded, datasets, out, protocol, load_judge(judge) if needs_judge else None,
            batch_size=batch, on_batch=on_batch,
        )  # fmt: skip
        report = _run(experiment, lab, endpoint, endpoint_model, dipper)
    report.about |= {"ran": _when(loaded)}
    _publish(report, out, experiment, as_json)


def _publish(report: Report, out: Path, name: str, as_json: bool) -> None:
    """Write a report, and print it."""
    paths = report.write(out, name)
    if as_json:
        print_json({"about": report.about, "rows": report.rows})
        return
    typer.echo(report.markdown())
    err.print("written: " + ", ".join(map(str, paths)))


def _nulls(model: str, c4: Path | None, eli5: Path | None, keys: int) -> Report:
    """Score what people wrote with random keys."""
    from dllmark.experiments.nulls import nulls
    from dllmark.experiments.settings import read_field
    from dllmark.text import load_tokenizer

    fields = {"C4 documents": (c4, "text"), "ELI5 answers": (eli5, "answer")}
    texts = {kind: read_field(path, name) for kind, (path, name) in fields.items() if path}
    with _progress() as on_key:
        report = nulls(load_tokenizer(model), texts, keys, on_key)
    report.about |= {"ran": _today()}
    return report


def _run(
    name: Name, lab: Lab, endpoint: str | None, endpoint_model: str, dipper: str | None
) -> Report:
    """Do one experiment."""
    from dllmark.experiments import specs

    if name == "table2":
        return specs.table2(
            lab,
            {
                "paraphrase": _by_endpoint(endpoint, endpoint_model) if endpoint else None,
                "dipper": _by_dipper(dipper) if dipper else None,
            },
        )
    spec: Callable[[Lab], Report] = getattr(specs, name)
    return spec(lab)


def _by_endpoint(url: str, model: str) -> Paraphraser:
    """Return the paraphraser behind an endpoint; its API key is in DLLMARK_API_KEY."""
    from dllmark.attacks.endpoint import Endpoint
    from dllmark.experiments.specs import Paraphraser

    server = Endpoint(url, model, MOST_REQUESTS, api_key=os.environ.get(API_KEY) or None)
    return Paraphraser(
        {"name": "paraphrase", "model": model},
        lambda records: server.paraphrase(record.text for record in records),
    )


def _by_dipper(source: str) -> Paraphraser:
    """Return Dipper, with the paper's settings."""
    from dllmark.attacks.dipper import Dipper
    from dllmark.experiments.specs import Paraphraser

    def answers(records: list[Record]) -> Iterator[tuple[int, str | GivenUp]]:
        if records:
            dipper = Dipper(source)
            for number, record in enumerate(records):
                yield number, dipper.paraphrase(record.text, seed=record.line)

    return Paraphraser({"name": "dipper", "model": source}, answers)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show how many texts of the present setting are written, and the time left."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        tasks: dict[str, int] = {}

        def on_batch(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)  # type: ignore[arg-type]

        yield on_batch


def _when(model: Model) -> str:
    """Return the date and what the model ran on."""
    import torch

    device = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU"
    return f"{_today()} on {device}, torch {torch.__version__}"


def _today() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).date().isoformat()
