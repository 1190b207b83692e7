"""Re-denoising: a diffusion model without the mark writes a share of a text's tokens again.

Nobody needs the key for that, nor another model: a diffusion model fills in whatever is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from dllmark.attacks.records import Record
from dllmark.attacks.tokens import random_positions
from dllmark.errors import InputError
from dllmark.relation.tokenizer import Ids, Tokenizer


class Fill(Protocol):
    """Who writes some tokens of texts anew: `dllmark.sampling.infill.infill` with a model."""

    def __call__(self, texts: list[Ids], positions: list[Ids], *, seed: int) -> list[Ids]:
        """Return the texts with new tokens at the positions of each."""


def redenoise(
    records: Sequence[Record],
    missing: Sequence[Record],
    tokenizer: Tokenizer,
    fill: Fill,
    ratio: float,
    *,
    longest: int,
    seed: int = 0,
    batch: int = 8,
) -> Iterator[tuple[int, str]]:
    """Yield the number of each missing record, and its text with a share of the tokens refilled.

    Which tokens these are depends on the seed and the line. Batches are those of all records: a
    run that goes on where another stopped fills as that one would have. A text without tokens
    stays, and one with more than `longest` is an `InputError`.
    """
    for record in missing:
        if (count := len(tokenizer.encode(record.text))) > longest:
            raise InputError(
                f"line {record.line} has {count} tokens, and the model takes {longest}: "
                "cut it into shorter texts"
            )
    numbers = {record.line: number for number, record in enumerate(missing)}
    for start in range(0, len(records), batch):
        together = records[start : start + batch]
        if not any(record.line in numbers for record in together):
            continue
        texts = tokenizer.encode_many([record.text for record in together])
        chosen = [
            random_positions(ids, ratio, np.random.default_rng([seed, record.line]))
            for record, ids in zip(together, texts, strict=True)
        ]
        some = [at for at, ids in enumerate(texts) if len(ids)]
        places = [chosen[at] for at in some]
        filled = fill([texts[at] for at in some], places, seed=seed + (start << 32)) if some else []
        new = dict(zip(some, filled, strict=True))
        for at, record in enumerate(together):
            if record.line in numbers:
                text = tokenizer.decode(new[at]) if at in new else record.text
                yield numbers[record.line], text
