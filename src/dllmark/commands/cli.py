"""The command line: one command a verb.

Exit status: 0 success (for `detect`: watermarked), 1 not detected, 2 error, 3 too short to tell.
Heavy imports stand inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import typer
from rich.table import Table

from dllmark.commands.attack import app as attack_app
from dllmark.commands.reproduce import reproduce
from dllmark.commands.scan import scan
from dllmark.commands.serve import serve
from dllmark.errors import DllmarkError, InputError, TokenizerError
from dllmark.marking.strategies import DEFAULT, STRATEGIES
from dllmark.terminal import (
    ERROR,
    err,
    evidence,
    out,
    print_details,
    print_error,
    print_json,
    print_line,
    print_text,
    print_verdict,
)

if TYPE_CHECKING:
    from dllmark.detection.detector import Detector
    from dllmark.detection.documents import Document

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Watermark text written by diffusion language models, and recognise it later.",
)

T = TypeVar("T")

EXIT = {"watermarked": 0, "not detected": 1, "too short": 3}

KeyOption = Annotated[
    Path, typer.Option("--key", envvar="DLLMARK_KEY", help="The key file.", show_default=False)
]
TokenizerOption = Annotated[
    str | None,
    typer.Option(help="Where the key's tokenizer is now, if not where the key says."),
]
ScoringOption = Annotated[
    Literal["unique", "all"],
    typer.Option(help="Score each distinct pair once, or every pair as in the paper."),
]
NormalizeOption = Annotated[
    bool,
    typer.Option("--normalize", help="Undo invisible characters and lookalike letters first."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command line; an error a user can mend is one line on standard error and exit 2."""
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    try:
        app()
    except DllmarkError as error:
        print_error(error)
        sys.exit(ERROR)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        print_error("generating needs torch: pip install 'dllmark[torch]'")
        sys.exit(ERROR)


def _version(asked: bool) -> None:
    if asked:
        from dllmark import __version__

        out.print(f"dllmark {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Watermark text written by diffusion language models, and recognise it later."""


@app.command()
def keygen(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The key file to write.", show_default=False)
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Whose tokenizer the key is for: `embedded`, a tokenizer.json or a folder "
            "with one, or a model on the hub."
        ),
    ] = "embedded",
    gamma: Annotated[float, typer.Option(help="The share of green pairs, in (0, 1).")] = 0.5,
    note: Annotated[str, typer.Option(help="A remark to keep in the file.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Make a key file: the secret, and all that detection needs to know."""
    from dllmark.relation.key import WatermarkKey, check_gamma
    from dllmark.relation.tokenizer import load_tokenizer

    check_gamma(gamma)
    key = WatermarkKey.generate(load_tokenizer(model).id, gamma=gamma, note=note)
    key.save(output)
    if as_json:
        print_json({"path": str(output), **key.identity.to_dict()})
        return
    out.print(f"wrote {output}: key {key.id}, gamma {key.gamma}, tokenizer {key.tokenizer.name}")
    out.print("Keep it secret and keep a copy: without it no text it marked can be recognised.")


@app.command()
def detect(
    key: KeyOption,
    file: Annotated[str, typer.Argument(help="A text or JSONL file, or - for input.")] = "-",
    fpr: Annotated[
        float, typer.Option(help="The false-positive rate the verdict may have.")
    ] = 0.01,
    scoring: ScoringOption = "unique",
    tokenizer: TokenizerOption = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Score each line's text (implied by *.jsonl).")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show the colour of tokens.")] = False,
    spans: Annotated[
        bool, typer.Option("--spans", help="Show which stretches carry the mark.")
    ] = False,
    normalize: NormalizeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether a text carries the key's watermark.

    Exit status, as grep's: 0 watermarked (of JSONL: at least one text), 1 not detected,
    2 error, 3 too short to tell. For folders and many files, see `dllmark scan`.
    """
    from dllmark.detection.documents import (
        detect_documents,
        looks_like_jsonl,
        read_jsonl,
        read_text,
    )

    detector = _detector(key, fpr, scoring, tokenizer)
    if not (jsonl or file.endswith(".jsonl")):
        document = next(_normalized([read_text(file)], normalize))
        if looks_like_jsonl(document.text):
            err.print(f"{document.source} looks like JSONL: --jsonl scores the text of each line")
        raise typer.Exit(_report_one(detector, document, explain, spans, as_json))
    verdicts, errors = set(), 0
    for item, detection in detect_documents(detector, _normalized(read_jsonl(file), normalize)):
        if detection is None:
            errors += 1
            print_error(str(item))
            continue
        assert not isinstance(item, DllmarkError)
        verdicts.add(detection.verdict.value)
        details = _details(detector, item.text, explain, spans)
        if as_json:
            print_json({"source": item.source, **detection.to_dict(), **details})
        else:
            print_line(f"{item.source}\t{detection.verdict.value}\t{evidence(detection)}")
            print_details(item.text, details)
    raise typer.Exit(ERROR if errors else min(EXIT[verdict] for verdict in verdicts))


@app.command()
def calibrate(
    key: KeyOption,
    file: Annotated[
        str, typer.Argument(help="JSONL of texts that carry no watermark, or - for input.")
    ],
    scoring: ScoringOption = "unique",
    tokenizer: TokenizerOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a PNG: observed against expected p-values.")
    ] = None,
    normalize: NormalizeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the false-positive rate on your own unwatermarked texts, and the thresholds."""
    from dllmark.detection.calibrate import calibrate as measure
    from dllmark.detection.calibrate import plot_p_values, require_matplotlib
    from dllmark.detection.documents import Document, detect_documents, read_jsonl

    if plot:
        require_matplotlib()
    detector = _detector(key, 0.01, scoring, tokenizer)
    detections = []
    with err.status("scoring") as status:
        for item, detection in detect_documents(detector, _normalized(read_jsonl(file), normalize)):
            if detection is None:
                raise InputError(str(item))
            if isinstance(item, Document) and item.watermark is not None:
                raise InputError(f"{item.source}: this text is marked; calibrate on unmarked ones")
            detections.append(detection)
            if len(detections) % 1000 == 0:
                status.update(f"scoring: {len(detections):,} texts")
    result = measure(detections)
    if plot:
        plot_p_values(detections, plot)
    if as_json:
        print_json(result.to_dict())
        return
    table = Table(
        "false-positive rate", "observed", "95 % interval", "z threshold", "95 % interval"
    )
    for row in result.rows:
        observed, limit = row.observed, row.threshold
        table.add_row(
            f"{100 * row.fpr:g} %",
            f"{100 * observed.share:.2f} %",
            f"{100 * observed.low:.2f} to {100 * observed.high:.2f} %",
            f"{limit.value:.2f}",
            f"{limit.low:.2f} to {limit.high:.2f}",
        )
    out.print(table)
    out.print(
        f"{result.texts} texts, key {result.key_id}: z {result.mean_z:.2f} ± {result.sd_z:.2f}"
    )


@app.command()
def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="What to write about, or - to read it from input.", show_default=False),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(envvar="DLLMARK_KEY", help="The key file to mark with.")
    ] = None,
    no_watermark: Annotated[
        bool, typer.Option("--no-watermark", help="Write without a mark, to compare.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="`embedded`, a folder, or a model on the hub; else the key's own."),
    ] = None,
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = DEFAULT.name,
    delta: Annotated[
        float | None, typer.Option(help="The bias towards green pairs; else the strategy's own.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to write at most.")] = 128,
    steps: Annotated[int, typer.Option(help="Denoising steps for a text (llada, dream).")] = 64,
    block: Annotated[int, typer.Option(help="The length of a block (llada, parallel).")] = 32,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens, which reach this together.")
    ] = 1.0,
    sampler: Annotated[
        Literal["llada", "dream", "parallel"], typer.Option(help="How masks are filled.")
    ] = "llada",
    order: Annotated[
        str | None,
        typer.Option(
            help="What is written first: low_confidence, random or left_to_right (llada); "
            "origin, maskgit_plus, topk_margin or entropy (dream). Else low_confidence or entropy."
        ),
    ] = None,
    cache: Annotated[
        str,
        typer.Option(
            help="Faster and approximate: compute what stands before a block (prefix), or all "
            "outside it (block), only once for the block (llada, parallel)."
        ),
    ] = "none",
    suppress_end: Annotated[
        bool, typer.Option("--suppress-end", help="Write all the tokens: no text ends earlier.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same texts.")] = 0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Continue the prompt as text, do not answer it.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Append JSONL to this file; a rerun continues it."),
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option("--prompts", help='JSONL with "prompt" in each line, or -.')
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show the text being denoised.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write texts with a diffusion model, marked with the key."""
    if key is None and not no_watermark:
        raise InputError("give a key to mark with (--key), or --no-watermark")
    from dllmark.commands.generate import Job, gather_prompts
    from dllmark.relation.key import WatermarkKey

    asked = gather_prompts(prompts or [], prompt_file)
    job = Job(
        key=WatermarkKey.load(key) if key else None, marked=not no_watermark, model=model,
        strategy=strategy, delta=delta, tokens=tokens, steps=steps, block=block,
        temperature=temperature, top_p=top_p, sampler=sampler, order=order, cache=cache,
        suppress_end=suppress_end, seed=seed, chat=not plain, watch=watch,
    )  # fmt: skip
    if output:
        held = job.append(asked, output)
        written = len(asked) - held
        if as_json:
            print_json({"path": str(output), "texts": written, "already there": held})
        else:
            err.print(f"{output}: {written} written, {held} already there")
        return
    for text in job.texts(asked):
        print_json(text.to_dict()) if as_json else print_text(text.text)


app.command()(serve)


app.add_typer(attack_app, name="attack")

app.command()(reproduce)


app.command()(scan)


@app.command()
def demo() -> None:
    """Watch the embedded model write with and without the watermark, and detect both."""
    from dllmark.commands.demo import run

    run()


def _detector(key: Path, fpr: float, scoring: Literal["unique", "all"], at: str | None) -> Detector:
    """Build the detector of a key file, with its tokenizer from `at` if given."""
    from dllmark.detection.detector import Detector
    from dllmark.relation.key import WatermarkKey
    from dllmark.relation.tokenizer import load_tokenizer

    loaded = WatermarkKey.load(key)
    try:
        tokenizer = load_tokenizer(at or loaded.tokenizer.name)
    except TokenizerError as error:
        moved = "" if at else ". If it was moved, say with --tokenizer where to"
        raise TokenizerError(f"{error}{moved}") from None
    return Detector(loaded, tokenizer, fpr=fpr, scoring=scoring)


def _normalized(items: Iterable[T], asked: bool) -> Iterator[T]:
    """Yield documents, normalised if asked, and errors as they are."""
    from dllmark.detection.documents import Document
    from dllmark.detection.normalize import normalize

    for item in items:
        if asked and isinstance(item, Document):
            yield replace(item, text=normalize(item.text))
        else:
            yield item


def _report_one(
    detector: Detector, document: Document, explain: bool, spans: bool, as_json: bool
) -> int:
    """Print one text's verdict and details, and return the exit status."""
    detection = detector.detect(document.text)
    details = _details(detector, document.text, explain, spans)
    if as_json:
        print_json({**detection.to_dict(), **details})
    else:
        print_verdict(detection)
        print_details(document.text, details)
    return EXIT[detection.verdict.value]


def _details(detector: Detector, text: str, explain: bool, spans: bool) -> dict[str, Any]:
    """Return the token colours and marked stretches that were asked for, as JSON values."""
    details: dict[str, Any] = {}
    if explain:
        details["tokens"] = [asdict(token) for token in detector.explain(text)]
    if spans:
        details["spans"] = [asdict(span) for span in detector.spans(text)]
    return details
