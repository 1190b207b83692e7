"""Read the texts a command is asked to score: plain text, or JSONL with a text a line."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dllmark.detection.detector import Detection, Detector
from dllmark.errors import DllmarkError, InputError, MismatchError


@dataclass(frozen=True)
class Document:
    """A text, where it came from, and what its record says beside it."""

    text: str
    source: str
    watermark: dict[str, Any] | None = None


def open_input(path: str) -> BinaryIO:
    """Open a file for reading, or standard input for `-`."""
    if path == "-":
        if sys.stdin is None:
            raise InputError("cannot read standard input: it is closed")
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def read_text(path: str) -> Document:
    """Return a whole file as one text."""
    with open_input(path) as file, _readable(path):
        text = _decode(file.read(), _name(path))
    if not text.strip():
        raise InputError(f"{_name(path)} is empty: there is nothing to score")
    return Document(text, _name(path))


def looks_like_jsonl(text: str) -> bool:
    """Return whether a text starts with a line that `read_jsonl` would take for a record.

    >>> looks_like_jsonl('{"text": "The sky is blue."}'), looks_like_jsonl("The sky is blue.")
    (True, False)
    """
    line = text.lstrip().split("\n", 1)[0]
    try:
        return line.startswith("{") and bool(_record(line.encode(), ""))
    except InputError:
        return False


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Turn a read that fails, on a broken disk or connection, into an error that says so."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {_name(path)}: {error.strerror}") from None


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def read_jsonl(path: str) -> Iterator[Document | InputError]:
    """Yield the text of each line, or what is wrong with that line; blank lines are passed over.

    A line is an object with "text" and optionally "watermark" (the identity stored with a
    generated text), or just a string.
    """
    found = False
    with open_input(path) as file, _readable(path):
        for number, line in enumerate(file, 1):
            if line.strip():
                found = True
                try:
                    yield _record(line, f"{_name(path)}:{number}")
                except InputError as error:
                    yield error
    if not found:
        raise InputError(f"{_name(path)} is empty: there is nothing to score")


def _record(line: bytes, source: str) -> Document:
    try:
        record = json.loads(_decode(line, source))
    except (ValueError, RecursionError):
        raise InputError(f'{source}: not a line of JSON: write each as {{"text": "..."}}') from None
    text = record.get("text") if isinstance(record, dict) else record
    watermark = record.get("watermark") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise InputError(f'{source}: a line needs a string under "text"')
    if watermark is not None and not isinstance(watermark, dict):
        raise InputError(f'{source}: "watermark" is not an object')
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{source}: the text holds lone surrogates, not valid Unicode") from None
    return Document(text, source, watermark)


def _decode(content: bytes, source: str) -> str:
    if b"\0" in content:
        raise InputError(f"{source}: this is binary data, not text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: byte {error.start} is not valid UTF-8; convert the text to UTF-8 first"
        ) from None


def detect_documents(
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
