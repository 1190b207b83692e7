"""Read training corpora: JSONL files (or .jsonl.xz) with "text" and, for chats, "prompt"."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

HOLD_OUT_EVERY = 100
"""One row in this many is never trained on; evaluation uses exactly those rows."""


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of one corpus file in order."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def training_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows that may be trained on."""
    return (row for number, row in enumerate(rows(path)) if number % HOLD_OUT_EVERY)


def held_out_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows kept for evaluation."""
    return (row for number, row in enumerate(rows(path)) if not number % HOLD_OUT_EVERY)
