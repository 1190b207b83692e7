"""`dllmark detect`."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dllmark.commands.key_options import labelled_keys
from dllmark.commands.options import (
    FindPayloadOption,
    JsonOption,
    KeyringOption,
    KeysOption,
    NormalizeOption,
    PayloadBitsOption,
    PayloadListOption,
    ScoringOption,
    TokenizersOption,
)
from dllmark.commands.payload_options import chosen_payloads, only_master
from dllmark.errors import DllmarkError, InputError
from dllmark.terminal import (
    ERROR,
    counting,
    err,
    evidence,
    print_details,
    print_error,
    print_json,
    print_line,
    print_text,
    print_verdict,
)

if TYPE_CHECKING:
    from dllmark.detection.detector import Detection
    from dllmark.detection.documents import Document
    from dllmark.detection.family import FamilyDetector

EXIT = {"watermarked": 0, "not detected": 1, "too short": 3}


def detect(
    file: Annotated[str, typer.Argument(help="A text or JSONL file, or - for input.")] = "-",
    key: KeysOption = None,
    keyring: KeyringOption = None,
    fpr: Annotated[
        float,
        typer.Option(
            help="The false-positive rate of the verdict: how often an unmarked text may be taken "
            "for a marked one. 0.01 suits one text; for many, see `dllmark scan`."
        ),
    ] = 0.01,
    scoring: ScoringOption = "unique",
    tokenizer: TokenizersOption = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Score each line's text (implied by *.jsonl).")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show the colour of tokens.")] = False,
    spans: Annotated[
        bool, typer.Option("--spans", help="Show which stretches carry the mark.")
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(
            help="A report.json of `dllmark report`, to take the power of a miss from.",
            show_default=False,
        ),
    ] = None,
    statement: Annotated[
        bool,
        typer.Option("--statement", help="Say the finding in words, with what it does not prove."),
    ] = False,
    normalize: NormalizeOption = False,
    payload: FindPayloadOption = False,
    payload_bits: PayloadBitsOption = None,
    payloads: PayloadListOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a text carries the key's watermark.

    With several keys, the verdict and the details are those of the key that fits best, and
    p-values are corrected for the number of keys; a key of a ring is named by its label. With
    --payload they are those of the payload that fits best, corrected for all payloads.

    A verdict says how strong its evidence is: weak, clear (p at most 1e-4) or overwhelming (at
    most 1e-10). A miss says its power: how many marked texts of this length would be found. Where
    that is less than 95 %, the text is too short to tell.

    Exit status, as grep's: 0 watermarked (of JSONL: at least one text), 1 not detected,
    2 error, 3 too short to tell. For folders and many files, see `dllmark scan`.
    """
    from dllmark.detection.any_key import load_detector
    from dllmark.detection.payload import load_payload_detector
    from dllmark.detection.power import reported_share

    space = chosen_payloads(payload, payload_bits, payloads)
    keys, labels = labelled_keys(key, keyring)
    share = reported_share(report, keys) if report else None
    detector: FamilyDetector
    if space is None:
        detector = load_detector(
            keys, tokenizer or (), fpr=fpr, scoring=scoring, marked_share=share
        )
    elif scoring != "unique":
        raise InputError("payloads are found by distinct pairs only: leave out --scoring")
    else:
        detector = load_payload_detector(
            only_master(keys), space, tokenizer or (), fpr=fpr, marked_share=share
        )
    shown = _Shown(detector, labels, explain, spans, statement, as_json)
    if jsonl or file.endswith(".jsonl"):
        raise typer.Exit(_detect_lines(shown, file, normalize))
    raise typer.Exit(_detect_text(shown, file, normalize))


@dataclass(frozen=True)
class _Shown:
    """What is printed of a detection: JSON or lines, with the details that were chosen."""

    detector: FamilyDetector
    labels: dict[str, str]
    explain: bool
    spans: bool
    statement: bool
    as_json: bool

    def print(self, document: Document, detection: Detection, *, with_source: bool) -> None:
        """Print the verdict on a text with its evidence and details."""
        marked = detection.verdict.value == "watermarked"
        label = self.labels.get(detection.key_id) if marked else None
        details: dict[str, Any] = {"label": label} if self.labels else {}
        if self.explain:
            tokens = self.detector.explain(document.text, detection)
            details["tokens"] = [asdict(token) for token in tokens]
        if self.spans:
            spans = self.detector.spans(document.text, detection)
            details["spans"] = [asdict(span) for span in spans]
        if self.statement:
            details["statement"] = _statement(document, detection, label)
        if self.as_json:
            source = {"source": document.source} if with_source else {}
            print_json({**source, **detection.to_dict(), **details})
            return
        if self.statement:
            print_text(details["statement"] + "\n" * with_source)
        elif with_source:
            figures = evidence(detection, label)
            print_line(f"{document.source}\t{detection.conclusion}\t{figures}")
        else:
            print_verdict(detection, label=label)
        print_details(document.text, details)


def _statement(document: Document, detection: Detection, label: str | None) -> str:
    """Return the finding in words, with what was examined, when, and by what."""
    from dllmark import __version__
    from dllmark.detection.statement import statement

    digest = hashlib.sha256(document.text.encode(errors="surrogatepass")).hexdigest()
    return (
        f"{statement(detection, label)}\n"
        f"Text: {document.source}, {len(document.text):,} characters, SHA-256 {digest}. Examined "
        f"on {datetime.now(timezone.utc):%Y-%m-%d} (UTC) with dllmark {__version__}."
    )


def _detect_text(shown: _Shown, file: str, normalize: bool) -> int:
    """Score a file as one text, and return the exit status."""
    from dllmark.detection.documents import looks_like_jsonl, read_text

    document = read_text(file)
    if looks_like_jsonl(document.text):
        err.print(f"{document.source} looks like JSONL: --jsonl scores the text of each line")
    document = document.normalized() if normalize else document
    detection = shown.detector.detect(document.text)
    shown.print(document, detection, with_source=False)
    return EXIT[detection.verdict.value]


def _detect_lines(shown: _Shown, file: str, normalize: bool) -> int:
    """Score the text of each line of a file, and return the exit status."""
    from dllmark.detection.documents import detect_documents, read_jsonl

    statuses, errors = [], 0
    with counting("texts scored", shown=not sys.stdout.isatty()) as count:
        for result in detect_documents(shown.detector, read_jsonl(file, normalize)):
            count()
            if isinstance(result, DllmarkError):
                errors += 1
                print_error(result)
                continue
            document, detection = result
            statuses.append(EXIT[detection.verdict.value])
            shown.print(document, detection, with_source=True)
    return ERROR if errors else min(statuses)
