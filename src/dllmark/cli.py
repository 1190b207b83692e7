"""The command line: one command a verb.

Exit status: 0 success (for `detect`: watermarked), 1 not detected, 2 error, 3 too short to tell.
Heavy imports stand inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dllmark.errors import DllmarkError, InputError, MismatchError, TokenizerError

if TYPE_CHECKING:
    from dllmark.detect import Detection, Detector
    from dllmark.documents import Document

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Watermark text written by diffusion language models, and recognise it later.",
)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Where the reader of our output has gone, exit 2: rich and typer exit 1, a verdict."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(ERROR)


out = _Output(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

EXIT = {"watermarked": 0, "not detected": 1, "too short": 3}
STYLE = {"watermarked": "bold green", "not detected": "bold", "too short": "yellow"}
ERROR = 2

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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command line; an error a user can mend is one line on standard error and exit 2."""
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    try:
        app()
    except DllmarkError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)))
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
    from dllmark.key import WatermarkKey, check_gamma
    from dllmark.text import load_tokenizer

    check_gamma(gamma)
    key = WatermarkKey.generate(load_tokenizer(model).id, gamma=gamma, note=note)
    key.save(output)
    if as_json:
        _print_json({"path": str(output), **key.identity.to_dict()})
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
    as_json: JsonOption = False,
) -> None:
    """Say whether a text carries the key's watermark.

    Exit status, as grep's: 0 watermarked (of JSONL: at least one text), 1 not detected,
    2 error, 3 too short to tell.
    """
    from dllmark.documents import read_jsonl, read_text

    detector = _detector(key, fpr, scoring, tokenizer)
    if not (jsonl or file.endswith(".jsonl")):
        raise typer.Exit(_report_one(detector, read_text(file), explain, spans, as_json))
    verdicts, errors = set(), 0
    for item, detection in _detect_lines(detector, read_jsonl(file)):
        if detection is None:
            errors += 1
            err.print(Text.assemble(("error: ", "bold red"), str(item)))
            continue
        assert not isinstance(item, DllmarkError)
        verdicts.add(detection.verdict.value)
        details = _details(detector, item.text, explain, spans)
        if as_json:
            _print_json({"source": item.source, **detection.to_dict(), **details})
        else:
            _print_line(f"{item.source}\t{detection.verdict.value}\t{_evidence(detection)}")
            _print_details(item.text, details)
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
    as_json: JsonOption = False,
) -> None:
    """Measure the false-positive rate on your own unwatermarked texts, and the thresholds."""
    from dllmark.calibrate import calibrate as measure
    from dllmark.calibrate import plot_p_values, require_matplotlib
    from dllmark.documents import Document, read_jsonl

    if plot:
        require_matplotlib()
    detector = _detector(key, 0.01, scoring, tokenizer)
    detections = []
    with err.status("scoring") as status:
        for item, detection in _detect_lines(detector, read_jsonl(file)):
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
        _print_json(result.to_dict())
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


def _detector(key: Path, fpr: float, scoring: Literal["unique", "all"], at: str | None) -> Detector:
    """Build the detector of a key file, with its tokenizer from `at` if given."""
    from dllmark.detect import Detector
    from dllmark.key import WatermarkKey
    from dllmark.text import load_tokenizer

    loaded = WatermarkKey.load(key)
    try:
        tokenizer = load_tokenizer(at or loaded.tokenizer.name)
    except TokenizerError as error:
        raise TokenizerError(f"{error}. If it was moved, say with --tokenizer where to") from None
    return Detector(loaded, tokenizer, fpr=fpr, scoring=scoring)


def _report_one(
    detector: Detector, document: Document, explain: bool, spans: bool, as_json: bool
) -> int:
    """Print one text's verdict and details, and return the exit status."""
    detection = detector.detect(document.text)
    verdict = detection.verdict.value
    details = _details(detector, document.text, explain, spans)
    if as_json:
        _print_json({**detection.to_dict(), **details})
        return EXIT[verdict]
    out.print(Text.assemble((verdict, STYLE[verdict]), f"  {_evidence(detection)}"))
    _print_details(document.text, details)
    return EXIT[verdict]


def _detect_lines(
    detector: Detector, items: Iterable[Document | InputError]
) -> Iterator[tuple[Document, Detection] | tuple[DllmarkError, None]]:
    """Yield each document with its detection, and each error, in the order they were read."""
    waiting: deque[Document | DllmarkError] = deque()

    def texts() -> Iterator[str]:
        for item in items:
            if isinstance(item, InputError):
                waiting.append(item)
                continue
            try:
                if item.watermark is not None:
                    detector.identity.check_claim(item.watermark)
            except MismatchError as error:
                waiting.append(MismatchError(f"{item.source}: {error}"))
                continue
            waiting.append(item)
            yield item.text

    for detection in detector.detect_many(texts()):
        while isinstance(first := waiting.popleft(), DllmarkError):
            yield first, None
        yield first, detection
    for left in waiting:
        assert isinstance(left, DllmarkError)
        yield left, None


def _details(detector: Detector, text: str, explain: bool, spans: bool) -> dict[str, Any]:
    """Return the token colours and marked stretches that were asked for, as JSON values."""
    details: dict[str, Any] = {}
    if explain:
        details["tokens"] = [asdict(token) for token in detector.explain(text)]
    if spans:
        details["spans"] = [asdict(span) for span in detector.spans(text)]
    return details


def _print_details(text: str, details: dict[str, Any]) -> None:
    """Print the coloured tokens and the marked stretches."""
    if "tokens" in details:
        out.print(_coloured(text, details["tokens"], plain=out.color_system is None))
    for span in details.get("spans", ()):
        excerpt = _printable(" ".join(text[span["start"] : span["end"]].split()))
        excerpt = excerpt if len(excerpt) <= 60 else f"{excerpt[:40]} ... {excerpt[-15:]}"
        out.print(f"{span['start']}-{span['end']}  p {_p(span['p_value'])}  {excerpt}")


def _coloured(text: str, tokens: list[dict[str, Any]], *, plain: bool) -> Text:
    """Return the text with its tokens in colour, or with + and - behind them where none shows.

    A character that several tokens share appears once.
    """
    styles = {"green": "black on green", "red": "black on red", "not scored": "dim"}
    signs = {"green": "+", "red": "-", "not scored": ""}
    coloured, shown = Text(), 0
    for token in tokens:
        piece, shown = _printable(text[shown : token["end"]]), token["end"]
        coloured.append(piece + signs[token["mark"]] if plain else piece, styles[token["mark"]])
    return coloured


def _printable(text: str) -> str:
    """Return a text that cannot command the terminal it is shown on."""
    return text.replace("\x1b", "\\x1b")


def _evidence(detection: Detection) -> str:
    return (
        f"z {detection.z:.2f}  p {_p(detection.p_value)}  "
        f"{detection.green} of {detection.pairs} pairs green  key {detection.key_id}"
    )


def _p(p_value: float) -> str:
    return f"{p_value:.3g}" if p_value > 0 else "< 1e-300"


def _print_json(record: dict[str, Any]) -> None:
    """Print one line of JSON, never wrapped or coloured."""
    _print_line(json.dumps(record))


def _print_line(line: str) -> None:
    """Print a line as it is; rich would turn its tabs into spaces."""
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        out.on_broken_pipe()
