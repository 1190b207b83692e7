"""What an experiment writes: under which settings, how much, and from which prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllmark.errors import InputError
from dllmark.text import Tokenizer

METHODS = ("kgw", "predictive", "bidirectional", "predictive-bidirectional")
"""The paper's strategies, in its order."""

RATES = (0.005, 0.01, 0.05)
"""The false-positive rates of the paper's tables."""

PREFIX = 30
"""The tokens of a C4 document that are given as a prompt."""


@dataclass(frozen=True)
class Setting:
    """How texts are written; a strategy of None leaves them unmarked.

    >>> Setting("kgw", delta=1.0).name
    'kgw, γ 0.5, δ 1, temperature 0, 1 a step'
    """

    strategy: str | None
    gamma: float = 0.5
    delta: float = 2.0
    temperature: float = 0.0
    per_step: int = 1

    @property
    def unmarked(self) -> Setting:
        """The same without a watermark."""
        return Setting(None, temperature=self.temperature, per_step=self.per_step)

    @property
    def name(self) -> str:
        """What it is called in reports."""
        mark = (
            f"{self.strategy}, γ {self.gamma:g}, δ {self.delta:g}" if self.strategy else "unmarked"
        )
        return f"{mark}, temperature {self.temperature:g}, {self.per_step} a step"

    @property
    def slug(self) -> str:
        """What its files are called."""
        mark = f"{self.strategy}-g{self.gamma:g}-d{self.delta:g}" if self.strategy else "unmarked"
        return f"{mark}-t{self.temperature:g}-p{self.per_step}"


@dataclass(frozen=True)
class Protocol:
    """How much is written and scored; the defaults are the paper's.

    A text with fewer than `scored` tokens is left out. So is a prompt whose unmarked text repeats
    more than the share `most_repeats` of its bigrams.
    """

    samples: int = 500
    tokens: int = 256
    scored: int = 200
    block: int = 32
    most_repeats: float = 0.5

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"an experiment needs at least 1 sample; got {self.samples}")
        if not 2 <= self.scored <= self.tokens:
            raise InputError(
                f"{self.scored} tokens cannot be scored of texts of {self.tokens}: score fewer"
            )


@dataclass(frozen=True)
class Dataset:
    """Prompts of one kind, and what people wrote there."""

    name: str
    prompts: list[str]
    truths: list[str]
    chat: bool


def read_c4(path: Path, tokenizer: Tokenizer, count: int) -> Dataset:
    """Return the first 30 tokens of documents as prompts, and how they go on."""
    texts = [_field(path, number, row, "text") for number, row in _rows(path, count)]
    encoded = tokenizer.encode_many(texts)
    return Dataset(
        name="C4",
        prompts=[tokenizer.decode(ids[:PREFIX]) for ids in encoded],
        truths=[tokenizer.decode(ids[PREFIX:]) for ids in encoded],
        chat=False,
    )


def read_eli5(path: Path, count: int) -> Dataset:
    """Return questions as prompts, and an answer to each."""
    rows = list(_rows(path, count))
    return Dataset(
        name="ELI5",
        prompts=[_field(path, number, row, "question") for number, row in rows],
        truths=[_field(path, number, row, "answer") for number, row in rows],
        chat=True,
    )


def read_field(path: Path, name: str) -> list[str]:
    """Return one field of every line of a JSONL file."""
    return [_field(path, number, row, name) for number, row in _rows(path)]


def _rows(path: Path, count: int | None = None) -> Iterator[tuple[int, Any]]:
    """Yield the first lines of a JSONL file, or all of them, numbered."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if count is not None and len(lines) < count:
        raise InputError(
            f"{path} has {len(lines)} rows and {count} samples are asked for: lower --samples"
        )
    for number, line in enumerate(lines[:count], 1):
        yield number, _json(path, number, line)


def _json(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise InputError(f"{path}:{number} is not JSON") from None


def _field(path: Path, number: int, row: Any, name: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, str) or not value.strip():
        raise InputError(f'{path}:{number} has no "{name}": write each line as {{"{name}": "..."}}')
    return value
