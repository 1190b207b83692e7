"""`dllmark calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dllmark.commands.key_options import one_key
from dllmark.commands.options import (
    JsonOption,
    NormalizeOption,
    OneKeyOption,
    ScoringOption,
    TokenizersOption,
)
from dllmark.errors import DllmarkError, InputError
from dllmark.terminal import counting, out, print_json

if TYPE_CHECKING:
    from dllmark.detection.any_key import AnyKeyDetector
    from dllmark.detection.calibrate import Calibration
    from dllmark.detection.detector import Detection


def calibrate(
    file: Annotated[
        str, typer.Argument(help="JSONL of texts that carry no mark, or - for standard input.")
    ],
    key: OneKeyOption = None,
    scoring: ScoringOption = "unique",
    tokenizer: TokenizersOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the observed p-values against the expected ones into this PNG file."
        ),
    ] = None,
    normalize: NormalizeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the false-positive rate on your own unmarked texts, and find the thresholds."""
    from dllmark.detection.any_key import load_detector
    from dllmark.detection.calibrate import calibrate, plot_p_values, require_matplotlib
    from dllmark.detection.expected import key_fairness
    from dllmark.relation.greenlist import HashedGreenList

    chosen = one_key(key, "calibrate")
    if plot:
        require_matplotlib()
    detector = load_detector([chosen], tokenizer or (), scoring=scoring)
    detections = _detections(detector, file, normalize)
    [of_key] = detector.tokenizers.values()
    fairness = key_fairness(HashedGreenList(chosen, of_key.vocab_size), of_key)
    result = calibrate(detections, fairness)
    if plot:
        plot_p_values(detections, plot)
    if as_json:
        print_json(result.to_dict())
    else:
        _print_table(result)


def _detections(detector: AnyKeyDetector, file: str, normalize: bool) -> list[Detection]:
    """Score every text of a file; one that cannot be scored, or is marked, is an error."""
    from dllmark.detection.documents import detect_documents, read_jsonl

    detections = []
    with counting("texts scored") as count:
        for scored in detect_documents(detector, read_jsonl(file, normalize)):
            if isinstance(scored, DllmarkError):
                raise scored
            document, detection = scored
            if document.watermark is not None:
                raise InputError(
                    f"{document.source}: this text is marked; calibrate on unmarked ones"
                )
            detections.append(detection)
            count()
    return detections


def _print_table(result: Calibration) -> None:
    from rich.table import Table

    table = Table(
        *("rate", "observed", "95 % interval", "against γ"),
        *("z threshold", "95 % interval"),
    )
    for row in result.rows:
        observed, limit = row.observed, row.threshold
        table.add_row(
            f"{100 * row.fpr:g} %",
            f"{100 * observed.share:.2f} %",
            f"{100 * observed.low:.2f} to {100 * observed.high:.2f} %",
            f"{100 * row.against_gamma.share:.2f} %",
            f"{limit.value:.2f}",
            f"{limit.low:.2f} to {limit.high:.2f}",
        )
    out.print(table)
    out.print(
        f"{result.texts} texts, key {result.key_id}: z {result.mean_z:.2f} ± {result.sd_z:.2f}"
    )
    fair = result.fairness
    out.print(
        f"Ordinary text is {100 * fair.share:.2f} % green under this key, where a random key has "
        f"± {100 * fair.spread:.2f}. Tested against γ, {100 * fair.against_gamma:.2f} % of "
        "unmarked texts of 200 pairs would be taken for marked at 1 %; tested against that share, "
        f"as they are, {100 * fair.against_share:.2f} %."
    )
