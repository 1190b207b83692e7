"""The audit file: a line of JSON for each request that was marked, which an operator can show.

    {"time": "2026-11-16T08:00:00+00:00", "key_id": "…", "strategy": "fresh-bidirectional",
     "delta": 2.0, "biased": 2080, "tokens": 64}

No line holds text or a secret. The file is made for its owner alone and only ever grows. Several
processes may write to one: each line goes to its end in one piece.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from dllmark.errors import InputError
from dllmark.files import writing

if TYPE_CHECKING:
    from torch import Tensor

    from dllmark.marking.watermark import Watermark


def append_audit(path: Path, watermark: Watermark, biased: int, tokens: int) -> None:
    """Append the line of a request: positions biased, at each step, and tokens written."""
    record = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "key_id": watermark.identity.key_id,
        "strategy": watermark.strategy.name,
        "delta": watermark.delta,
        "biased": biased,
        "tokens": tokens,
    }
    _append(path, json.dumps(record).encode() + b"\n")


def audit_file(path: str | Path) -> Path:
    """Return the path of an audit file once it is sure that lines can be added to it."""
    _append(Path(path), b"")
    return Path(path)


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with writing(path):
        file = os.open(path, flags, 0o600)
        try:
            written = os.write(file, line)
        finally:
            os.close(file)
    if written != len(line):
        raise InputError(f"cannot write to {path}: the disk is full")


class RequestCount:
    """What was done for the request that is being written, until `end` writes its line.

    A position counts as one token, however many steps it is biased in.
    """

    def __init__(self, watermark: Watermark, path: Path | None) -> None:
        self.biased = self.tokens = 0
        self._watermark, self._path = watermark, path
        self._at = 0
        self._seen: Tensor | None = None

    def see(self, where: Tensor, at: int) -> None:
        """Count positions [B, L] of a text, which begin at its token `at`.

        A text that is shorter than before is another request's.
        """
        if self._path is None:
            return
        if at < self._at:
            self.end()
        if self._seen is None or at != self._at or self._seen.shape != where.shape:
            self._count()
            self._at, self._seen = at, where
        else:
            self._seen = self._seen | where

    def end(self) -> None:
        """Write the request's line, if anything was biased, and begin the next."""
        self._count()
        if self.biased and self._path is not None:
            append_audit(self._path, self._watermark, self.biased, self.tokens)
        self.drop()

    def drop(self) -> None:
        """Begin the next request without a line for this one: its text came to nothing."""
        self.biased = self.tokens = self._at = 0
        self._seen = None

    def _count(self) -> None:
        if self._seen is not None:
            self.tokens += int(self._seen.sum())
            self._seen = None
