"""`dllmark scan`: the command, its progress bar and its report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dllmark.commands.key_options import all_keys
from dllmark.commands.options import (
    FindPayloadOption,
    JsonOption,
    KeyringOption,
    KeysOption,
    PayloadBitsOption,
    PayloadListOption,
    TokenizersOption,
)
from dllmark.commands.payload_options import chosen_payloads, only_master
from dllmark.errors import InputError, require
from dllmark.terminal import print_json, print_text, progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from dllmark.scan.rule import Rule

FOUND, NONE_FOUND = 0, 1


def scan(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Parquet, JSONL or text files, folders, globs, or URLs that fsspec knows "
            "(s3://, gs://, hf://).",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The folder for the results.", show_default=False),
    ],
    key: KeysOption = None,
    keyring: KeyringOption = None,
    text_column: Annotated[
        str, typer.Option(help="The column or field that holds the text.")
    ] = "text",
    id_column: Annotated[
        str, typer.Option(help="The column or field that names a document.")
    ] = "id",
    fdr: Annotated[
        float | None,
        typer.Option(
            help="The false discovery rate: which share of the hits may be false.",
            show_default="0.01",
        ),
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(
            help="Instead, a false-positive rate: every document with a p-value up to this is a "
            "hit.",
            show_default=False,
        ),
    ] = None,
    hits: Annotated[
        bool, typer.Option("--hits", help="Print the hits too, not only their number.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first document that cannot be read.")
    ] = False,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Work on this machine, or on a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(help="How many processes to use. Without it, one for each core.")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster. Without it, one is started on this machine."),
    ] = None,
    tokenizer: TokenizersOption = None,
    payload: FindPayloadOption = False,
    payload_bits: PayloadBitsOption = None,
    payloads: PayloadListOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a corpus for watermarked documents.

    A scan that was cut off continues with the same command.

    Exit status: 0 if there are hits, 1 if there are none, 2 error.
    """
    require("scanning", "scan", "fsspec", "matplotlib", "pyarrow")
    from dllmark.cluster import Engine
    from dllmark.relation.tokenizer import load_tokenizer
    from dllmark.scan.reading import Columns
    from dllmark.scan.run import HITS, Scan
    from dllmark.scan.scoring import Scorer
    from dllmark.scan.summary import as_text, read_hits
    from dllmark.scan.work import ScanSettings

    where = Engine(engine, workers, ray_address)
    space = chosen_payloads(payload, payload_bits, payloads)
    keys = tuple(all_keys(key, keyring))
    if space is not None:
        only_master(keys)
    sources = tuple(tokenizer or ())
    rule = _chosen_rule(fdr, fpr)
    Scorer(keys, rule.rate, [load_tokenizer(source) for source in sources])  # wrong ones show here
    settings = ScanSettings(keys, rule, Columns(text_column, id_column), sources, strict, space)
    try:
        with _progress() as (on_plan, on_progress):
            whole = Scan(inputs, settings, output)
            summary = whole.run(where, on_plan, on_progress)
    except KeyboardInterrupt:
        raise InputError(f"interrupted: the same command continues in {output}") from None
    listed = read_hits(output / HITS) if hits else iter(())
    if as_json:
        print_json({**summary, "hits": list(listed)} if hits else summary)
    else:
        print_text(as_text(summary))
        for hit in listed:
            print_text(_hit_line(hit))
    if not summary["documents"]:
        raise InputError(f"no document could be read: see {output / 'errors.jsonl'}")
    raise typer.Exit(FOUND if summary["watermarked"] else NONE_FOUND)


def _chosen_rule(fdr: float | None, fpr: float | None) -> Rule:
    """Return the rule that one of the two rates asks for; the false discovery rate without any."""
    from dllmark.scan.rule import Rule

    if fdr is not None and fpr is not None:
        raise InputError("give --fdr or --fpr: one of the two says which documents are hits")
    if fpr is not None:
        return Rule("fpr", fpr)
    return Rule() if fdr is None else Rule("fdr", fdr)


def _hit_line(hit: dict[str, str]) -> str:
    """Return a hit for people: its p-value, where it is, and whose mark it carries."""
    place = f"{hit['path']}:{hit['row']}" if hit["row"] else hit["path"]
    own = f"  id {hit['id']}" if hit["id"] else ""
    payload = f"  payload {hit['payload'] or 'unclear'}" if "payload" in hit else ""
    return f"p {float(hit['p_value']):.3g}  {place}{own}  key {hit['key_id']}{payload}"


@contextmanager
def _progress() -> Iterator[tuple[Callable[[int, int], None], Callable[[int, int], None]]]:
    """Show bytes, documents a second and the time left."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), DownloadColumn(),
        TransferSpeedColumn(), TextColumn("{task.fields[documents]:,} documents"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with progress_bar(*columns) as bar:
        task = bar.add_task("scanning", total=None, documents=0)
        documents = 0

        def on_plan(total: int, done: int) -> None:
            bar.update(task, total=total, completed=done)

        def on_progress(size: int, more: int) -> None:
            nonlocal documents
            documents += more
            bar.update(task, advance=size, documents=documents)

        yield on_plan, on_progress
