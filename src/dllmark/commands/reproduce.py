"""`dllmark reproduce`: tables and figures of the paper, on any model."""

from __future__ import annotations

import functools
import math
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dllmark.commands.reproduce_adversary import make_adversary
from dllmark.commands.sampler_options import NO_REPEAT
from dllmark.errors import InputError
from dllmark.experiments.paper import DELTA
from dllmark.sampling.settings import CacheMode
from dllmark.terminal import err, print_json, print_text, progress_bar

if TYPE_CHECKING:
    from dllmark.cluster import Engine
    from dllmark.experiments.batches import BatchWriter
    from dllmark.experiments.lab import Lab
    from dllmark.experiments.report import Report
    from dllmark.experiments.robustness import Adversary
    from dllmark.experiments.settings import Dataset, Protocol
    from dllmark.models.loading import Model
    from dllmark.relation.tokenizer import Tokenizer


class Experiment(str, Enum):
    """What can be reproduced; typer takes a list of these, and no list of literals."""

    TABLE1 = "table1"
    TABLE2 = "table2"
    TABLE3 = "table3"
    FIGURE2 = "figure2"
    FIGURE3 = "figure3"
    EXAMPLES = "examples"
    FRONTIER = "frontier"
    LENGTHS = "lengths"
    ATTACKS = "attacks"
    NULLS = "nulls"
    RIVALS = "rivals"


JUDGED = {
    Experiment.TABLE3, Experiment.FIGURE3, Experiment.EXAMPLES, Experiment.FRONTIER,
    Experiment.RIVALS,
}  # fmt: skip
"""Those that measure perplexity."""

DRAWN = {
    Experiment.FIGURE2, Experiment.FIGURE3, Experiment.FRONTIER, Experiment.LENGTHS,
    Experiment.ATTACKS, Experiment.RIVALS,
}  # fmt: skip
"""Those that have a plot."""

NULL_KEYS, RIVAL_KEYS = 50, 8
"""How many keys `nulls` takes where nothing else is said, and `rivals` and `attacks`."""

OnBatch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Prompts:
    """Where prompts come from, and what people wrote there."""

    c4: str | None
    eli5: str | None

    def __post_init__(self) -> None:
        if self.c4 is None and self.eli5 is None:
            raise InputError("give prompts: --c4 FILE, --eli5 FILE, or both")

    def read(self, tokenizer: Tokenizer, count: int) -> list[Dataset]:
        """Return so many prompts of each kind."""
        from dllmark.experiments.prompts import read_c4, read_eli5

        datasets = [read_c4(self.c4, tokenizer, count)] if self.c4 else []
        return datasets + ([read_eli5(self.eli5, count)] if self.eli5 else [])

    def read_texts(self, count: int) -> dict[str, list[str]]:
        """Return what people wrote."""
        from dllmark.experiments.prompts import read_field

        fields = {"C4 documents": (self.c4, "text"), "ELI5 answers": (self.eli5, "answer")}
        return {kind: read_field(source, name, count)
                for kind, (source, name) in fields.items() if source}  # fmt: skip


def reproduce(
    experiments: Annotated[
        list[Experiment], typer.Argument(help="What to reproduce, one after the other.")
    ],
    out: Annotated[
        Path, typer.Option(help="A folder for texts, keys and reports; a rerun goes on there.")
    ],
    model: Annotated[
        str, typer.Option(help="`embedded`, a folder, or a model on the hub.")
    ] = "embedded",
    c4: Annotated[
        str | None,
        typer.Option(
            help='JSONL of documents with "text", or a dataset on the hub: hf:NAME:CONFIG:SPLIT, '
            "for instance hf:allenai/c4:en:validation."
        ),
    ] = None,
    eli5: Annotated[
        str | None,
        typer.Option(help='The same with "question" and "answer".'),
    ] = None,
    samples: Annotated[int, typer.Option(help="Prompts of each kind.")] = 500,
    tokens: Annotated[int, typer.Option(help="Tokens written for each.")] = 256,
    scored: Annotated[int, typer.Option(help="Tokens scored; shorter texts are left out.")] = 200,
    max_repeats: Annotated[
        float, typer.Option(help="Leave out prompts whose unmarked text repeats more bigrams.")
    ] = 0.5,
    suppress_end: Annotated[
        bool, typer.Option("--suppress-end", help="Write all the tokens: no text ends earlier.")
    ] = False,
    delta: Annotated[
        float, typer.Option(help="How strong the mark is, where an experiment does not vary it.")
    ] = DELTA,
    block: Annotated[int, typer.Option(help="LLaDA's order: the length of a block.")] = 32,
    cache: Annotated[
        CacheMode, typer.Option(help="LLaDA's order: as in `generate`; none is exact.")
    ] = "none",
    apart: Annotated[
        bool,
        typer.Option(
            "--apart", help="LLaDA's order: no neighbours in one step, as `generate` writes."
        ),
    ] = False,
    no_repeat_ngram: Annotated[int, typer.Option(help=NO_REPEAT)] = 0,
    batch: Annotated[int, typer.Option(help="Texts written together.")] = 8,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Write on this machine, or on a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(help="ray: how many write; else one a GPU, or one a machine without GPUs."),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="The Ray cluster; else one is started on this machine.")
    ] = None,
    judge: Annotated[
        str,
        typer.Option(help="For perplexity: `smollm2`, a folder, a GGUF file, a hub id, or `none`."),
    ] = "smollm2",
    second_judge: Annotated[
        str | None, typer.Option(help="rivals: another judge, given likewise.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="table2, attacks: an OpenAI-compatible endpoint that paraphrases."),
    ] = None,
    endpoint_model: Annotated[str, typer.Option(help="The endpoint's model.")] = "gpt-5-nano",
    dipper: Annotated[
        str | None, typer.Option(help="table2: the folder or hub id of Dipper's weights.")
    ] = None,
    wordnet: Annotated[
        Path | None, typer.Option(help="attacks: a folder with WordNet's database files.")
    ] = None,
    keys: Annotated[
        int | None,
        typer.Option(
            help="nulls, rivals, attacks: how many random keys.",
            show_default=f"{NULL_KEYS} for nulls, else {RIVAL_KEYS}",
        ),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="rivals, attacks: the order in which texts are written, low_confidence or random "
            "(LLaDA's) or entropy (Dream's)."
        ),
    ] = "low_confidence",
    scheme: Annotated[
        list[str] | None,
        typer.Option(help="rivals, attacks: only this one; several times. Else all."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="rivals: one setting of the sampler, one strength of each scheme."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="rivals: only this report, for instance t0-p1-low_confidence; attacks: only this "
            "attack; several times."
        ),
    ] = None,
    strength: Annotated[
        list[float] | None,
        typer.Option(help="rivals, over δ: such a share of each scheme's own; several times."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="local: where the model writes, `auto`, `cpu` or `cuda`.")
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="local: what the model computes in, `float32`, `bfloat16` or `float16`; `auto` is "
            "bfloat16 on a GPU."
        ),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print each report as JSON.")] = False,
) -> None:
    """Write, score and report tables and figures of the paper, and five of our own.

    `frontier`: detection against perplexity, over δ. `lengths`: detection against length.
    `attacks`: detection after every attack. `nulls`: false positives on what people wrote, over
    random keys. `rivals`: other people's watermarks and ours, side by side.

    Each text is kept when it is written: the same command again goes on where it was stopped, and
    with nothing left to write makes the reports without loading the model.
    """
    from dllmark.cluster import Engine
    from dllmark.detection.calibrate import require_matplotlib
    from dllmark.experiments.rivals.compare import STRENGTHS, rivals, wanted_reports
    from dllmark.experiments.rivals.schemes import find_scheme
    from dllmark.experiments.robustness import ATTACKS, attacks, check_attacks
    from dllmark.experiments.settings import Protocol
    from dllmark.files import only_writer_in

    prompts = Prompts(c4, eli5)
    where = Engine(engine, workers, ray_address)
    if engine == "local" and workers is not None:
        raise InputError("--workers is for --engine ray")
    if engine == "ray" and (device, dtype) != ("auto", "auto"):
        raise InputError(
            "--device and --dtype are for --engine local: on Ray each worker takes a GPU"
        )
    if batch < 1:
        raise InputError(f"batch is at least 1; got {batch}")
    for share in strength or []:
        if not 0 <= share < math.inf:
            raise InputError(f"a strength is at least 0; got {share:g}")
    for name in scheme or []:
        find_scheme(name)
    if only and Experiment.RIVALS in experiments:
        wanted_reports(order, quick, only)
    if only and Experiment.ATTACKS in experiments:
        check_attacks(only)
    if DRAWN.intersection(experiments):
        require_matplotlib()
    protocol = Protocol(
        samples, tokens, scored, block, max_repeats, suppress_end, delta, cache, apart,
        no_repeat_ngram,
    )  # fmt: skip
    load = _loader(model, device, dtype)
    adversary = make_adversary(load, endpoint, endpoint_model, dipper, wordnet)
    judged = judge if judge != "none" and JUDGED.intersection(experiments) else None
    with only_writer_in(out), _writer(model, where, load) as writer:
        lab = None
        if set(experiments) != {Experiment.NULLS}:
            lab = _lab(writer, model, prompts, out, protocol, judged, batch)
            lab.second_judge = second_judge if Experiment.RIVALS in experiments else None
        for name in experiments:
            compared = RIVAL_KEYS if keys is None else keys
            if lab is None or name is Experiment.NULLS:
                many = NULL_KEYS if keys is None else keys
                with stage_progress() as on_key:
                    report = _nulls(model, prompts, samples, many, on_key)
                _publish(report, out, name.value, as_json)
            elif name is Experiment.RIVALS:
                reports = rivals(
                    lab, compared, order, quick, scheme or [], only or [], strength or STRENGTHS
                )
                for file, report in _one_by_one(lab, reports):
                    _publish(report, out, file, as_json)
            else:
                with stage_progress() as lab.on_batch:
                    if name is Experiment.ATTACKS:
                        some = only or ATTACKS
                        report = attacks(lab, adversary, compared, order, scheme or [], some)
                    else:
                        report = _run(name, lab, adversary)
                _publish(report, out, name.value, as_json)


def _loader(model: str, device: str, dtype: str) -> Callable[[], Model]:
    """Return what loads the model, once, when somebody needs it."""

    @functools.cache
    def load() -> Model:
        from dllmark.models.loading import load_model

        return load_model(model, device=device, dtype=dtype)

    return load


def _writer(
    model: str, engine: Engine, load: Callable[[], Model]
) -> AbstractContextManager[BatchWriter]:
    """Return who writes the texts; it loads the model when there is something to write."""
    if engine.name == "ray":
        from dllmark.experiments.on_ray import RayWriter

        return RayWriter(model, engine)
    from dllmark.experiments.batches import LocalWriter

    return nullcontext(LocalWriter(load))


def _lab(
    writer: BatchWriter,
    model: str,
    prompts: Prompts,
    out: Path,
    protocol: Protocol,
    judge: str | None,
    batch: int,
) -> Lab:
    """Return a lab with the prompts that are given."""
    from dllmark.experiments.lab import Lab
    from dllmark.relation.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    datasets = prompts.read(tokenizer, protocol.samples)
    return Lab(
        model, tokenizer, datasets, out, protocol, writer, judge, batch, command=command_line()
    )


def _publish(report: Report, out: Path, name: str, as_json: bool) -> None:
    """Write a report with where and how it was made, and print it."""
    from dllmark.experiments.batches import processor
    from dllmark.experiments.runs import revision, today

    report.origin |= {
        "report": f"{today()}, dllmark {revision()}, {processor()}",
        "command": f"`{command_line()}`",
    }
    paths = report.write(out, name)
    print_json(report.record()) if as_json else print_text(report.markdown())
    err.print("written: " + ", ".join(map(str, paths)))


def command_line() -> str:
    """Return what was typed, as a shell would take it."""
    return shlex.join(["dllmark", *sys.argv[1:]])


def _nulls(model: str, prompts: Prompts, count: int, keys: int, on_key: OnBatch) -> Report:
    """Score what people wrote with random keys."""
    from dllmark.experiments.nulls import nulls
    from dllmark.relation.tokenizer import load_tokenizer

    return nulls(load_tokenizer(model), prompts.read_texts(count), keys, on_key)


def _one_by_one(lab: Lab, reports: Iterator[tuple[str, Report]]) -> Iterator[tuple[str, Report]]:
    """Yield each report when its texts are written, and show how far that is."""
    while True:
        with stage_progress() as lab.on_batch:
            found = next(reports, None)
        if found is None:
            return
        yield found


def _run(name: Experiment, lab: Lab, adversary: Adversary) -> Report:
    """Do one experiment."""
    from dllmark.experiments import specs

    if name is Experiment.TABLE2:
        return specs.table2(lab, adversary.paraphrasers)
    spec: Callable[[Lab], Report] = getattr(specs, name.value)
    return spec(lab)


@contextmanager
def stage_progress() -> Iterator[OnBatch]:
    """Show what is being done, how much of it is, and the time left."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with progress_bar(*columns) as bar:
        task = bar.add_task("", total=None)

        def on_batch(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield on_batch
