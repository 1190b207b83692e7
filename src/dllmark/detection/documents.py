"""Read the texts to score: plain text, or JSONL with a text a line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dllmark.detection.detector import Detection
from dllmark.detection.family import FamilyDetector
from dllmark.detection.normalize import normalize
from dllmark.errors import DllmarkError, InputError, MismatchError
from dllmark.files import input_name, parse_record, read_input, read_lines


@dataclass(frozen=True)
class Document:
    """A text, where it came from, and whose mark its record says it carries."""

    text: str
    source: str
    watermark: dict[str, Any] | None = None

    def normalized(self) -> Document:
        """Return it without invisible characters and lookalike letters."""
        return replace(self, text=normalize(self.text))


def read_text(path: str) -> Document:
    """Return a whole file as one text."""
    return Document(read_input(path), input_name(path))


def read_jsonl(path: str, normalized: bool = False) -> Iterator[Document | InputError]:
    """Yield the text of each line, or what is wrong with that line; blank lines are passed over.

    A line is an object with "text" and optionally "watermark" (the identity stored with a
    generated text), or just a string.
    """
    for number, line in read_lines(path):
        document = _document(line, f"{input_name(path)}:{number}")
        yield document.normalized() if normalized and isinstance(document, Document) else document


def looks_like_jsonl(text: str) -> bool:
    """Return whether a text starts with a line that `read_jsonl` would take for a record.

    >>> looks_like_jsonl('{"text": "The sky is blue."}'), looks_like_jsonl("The sky is blue.")
    (True, False)
    """
    line = text.lstrip().split("\n", 1)[0]
    return line.startswith("{") and isinstance(_document(line.encode(), ""), Document)


def _document(line: bytes, source: str) -> Document | InputError:
    try:
        record = parse_record(line, source, "text")
    except InputError as error:
        return error
    watermark = record.get("watermark")
    if watermark is not None and not isinstance(watermark, dict):
        return InputError(f'{source}: "watermark" is not an object')
    return Document(record["text"], source, watermark)


def detect_documents(
    detector: FamilyDetector, items: Iterable[Document | InputError]
) -> Iterator[tuple[Document, Detection] | DllmarkError]:
    """Yield each document with its detection, and each error, in the order they were read."""
    waiting: deque[Document | DllmarkError] = deque()

    def texts() -> Iterator[str]:
        for item in items:
            if isinstance(item, InputError):
                waiting.append(item)
                continue
            try:
                if item.watermark is not None:
                    detector.check_claim(item.watermark)
            except MismatchError as error:
                waiting.append(MismatchError(f"{item.source}: {error}"))
                continue
            waiting.append(item)
            yield item.text

    for detection in detector.detect_many(texts()):
        while isinstance(first := waiting.popleft(), DllmarkError):
            yield first
        yield first, detection
    for left in waiting:
        assert isinstance(left, DllmarkError)
        yield left
