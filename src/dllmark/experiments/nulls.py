"""Whether the false-positive rate is what we say: people's texts, scored with many keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dllmark.detection.detector import Detector
from dllmark.errors import InputError
from dllmark.experiments.report import Report, Row, rate_cells
from dllmark.experiments.settings import SCORINGS
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer

NOMINAL = (0.05, 0.01, 0.001, 0.0001)
LENGTHS = (25, 50, 100, 200, 400)


def nulls(
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    keys: int = 50,
    on_key: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Report:
    """Return how often texts of each kind and length are taken for marked ones, over random keys.

    A text counts with its first tokens at every length it reaches. The intervals take all tests as
    independent; the rates of the keys at 1 %, from lowest to highest, show how far they are not.

    >>> report = nulls(load_tokenizer("embedded"), {"C4": documents})  # doctest: +SKIP
    """
    if keys < 1:
        raise InputError(f"at least 1 key is needed; got {keys}")
    made = [WatermarkKey.generate(tokenizer.id) for _ in range(keys)]
    report = Report("Nulls: false positives on people's texts", {"tokenizer": tokenizer.name,
                                                                 "keys": keys})  # fmt: skip
    for kind, written in texts.items():
        encoded = tokenizer.encode_many(written)
        for length in LENGTHS:
            cut = [ids[:length] for ids in encoded if len(ids) >= length]
            if not cut:
                continue
            for scoring in SCORINGS:
                p = []
                for number, key in enumerate(made, 1):
                    detector = Detector(key, tokenizer, scoring=scoring)
                    p.append([detection.p_value for detection in detector.detect_many(cut)])
                    on_key(f"{kind}, {length} tokens, {scoring}", number, keys)
                row: Row = {"texts of": kind, "tokens": length, "scoring": scoring,
                            "texts": len(cut)}  # fmt: skip
                report.add(row | _rates(np.array(p)))
    return report


def _rates(p: np.ndarray) -> Row:
    """Return the share of p-values [keys, texts] at or below each nominal rate, in per cent."""
    row: Row = {}
    for rate in NOMINAL:
        row |= rate_cells(f"observed at {100 * rate:g} %", int((p <= rate).sum()), p.size)
    each = 100 * np.sort((p <= 0.01).mean(axis=1))
    row["keys at 1 %"] = f"{each[0]:.2f} to {each[-1]:.2f}"
    return row
