"""How far single keys stray from the stated false-positive rate, and what that costs in power.

Usage: python benchmarks/fairness.py KIND=FILE [KIND=FILE ...] [--marked KEY=FILE ...] [--json]

A FILE is JSONL (also .xz) with "text", or "question" and "answer", in each line, or a folder of
Python source: texts that carry no mark. Each is cut into texts of 200 tokens (--tokens); shorter
ones are joined with the next. They are scored with 100 fixed keys (--keys), against γ (before) and
against the share that each key leads to expect (after). "coins" is the worst of as many keys for
which every pair of every text were a coin of its own: what chance alone makes of so many texts.
--marked gives texts that a key file marked: how many of them are found, before and after.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hardware import describe
from numpy.typing import NDArray

from dllmark import Tokenizer, WatermarkKey, load_tokenizer
from dllmark.detection.counting import count_pairs
from dllmark.detection.detector import joined
from dllmark.detection.expected import expected_shares
from dllmark.detection.stats import binomial_tail
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import Secret

RATES = (0.05, 0.01, 0.001, 0.0001)
LENGTHS = (25, 50, 100, 200)
TEXTS_OF_ONE = 4


def read(source: Path) -> Iterator[str]:
    """Yield the texts of a file, or two thirds of each Python file in a folder."""
    if source.is_dir():
        paths = sorted(
            source.rglob("*.py"), key=lambda path: hashlib.md5(path.name.encode()).digest()
        )
        for path in paths:
            text = path.read_text(encoding="utf-8", errors="ignore")
            yield text[len(text) // 3 :]  # without the licence that many begin with
        return
    with (lzma.open if source.suffix == ".xz" else open)(source, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            yield record.get("text") or f"{record['question']}\n{record['answer']}"


def cut(tokenizer: Tokenizer, source: Path, tokens: int, most: int) -> list[NDArray[np.int64]]:
    """Return the ids of at most so many texts of the same length."""
    texts: list[NDArray[np.int64]] = []
    waiting = ""
    for text in read(source):
        waiting += text[: 16 * tokens * TEXTS_OF_ONE]
        ids = tokenizer.encode(waiting)
        if len(ids) < tokens:
            waiting += "\n\n"
            continue
        waiting = ""
        whole = min(len(ids) // tokens, TEXTS_OF_ONE)
        texts += np.split(ids[: whole * tokens], whole)
        if len(texts) >= most:
            break
    return texts[:most]


def fixed_key(tokenizer: Tokenizer, number: int) -> WatermarkKey:
    """Return the same key for the same number, everywhere."""
    secret = hashlib.sha256(f"fairness {number}".encode()).digest()[:16]
    return WatermarkKey(Secret(secret), 0.5, tokenizer.id)


def rates(
    tokenizer: Tokenizer, kinds: dict[str, list[NDArray[np.int64]]], keys: int
) -> list[dict[str, Any]]:
    """Return for each kind, and all together, the share of texts each key accuses."""
    ids, lengths = joined([text for texts in kinds.values() for text in texts])
    lists = [HashedGreenList(fixed_key(tokenizer, n), tokenizer.vocab_size) for n in range(keys)]
    counted, pairs = count_pairs(lists, tokenizer, ids, lengths)
    random = np.random.default_rng(0)
    p = np.empty((3, keys, len(lengths)))
    for key, (green, one) in enumerate(zip(counted, lists, strict=True)):
        expected = expected_shares(one, tokenizer, ids, lengths)
        p[0, key] = binomial_tail(green, pairs, 0.5)
        p[1, key] = binomial_tail(green, pairs, expected)
        p[2, key] = binomial_tail(random.binomial(pairs, 0.5), pairs, 0.5)
    rows, start = [], 0
    for kind, texts in [*kinds.items(), ("all", [None] * len(lengths))]:
        own = slice(None) if kind == "all" else slice(start, start + len(texts))
        start += len(texts)
        for rate in RATES:
            before, after, coins = 100 * (p[:, :, own] <= rate).mean(axis=2)
            rows.append({
                "kind": kind, "texts": len(texts), "nominal": 100 * rate,
                "before, mean": before.mean(), "before, best": before.min(),
                "before, worst": before.max(),
                "after, mean": after.mean(), "after, best": after.min(),
                "after, worst": after.max(),
                "coins, worst": coins.max(),
            })  # fmt: skip
    return rows


def power(tokenizer: Tokenizer, marked: list[tuple[Path, Path]]) -> list[dict[str, Any]]:
    """Return how many marked texts are found at each length, before and after."""
    p: dict[int, list[tuple[float, float]]] = {length: [] for length in LENGTHS}
    for key, file in marked:
        green = HashedGreenList(WatermarkKey.load(key), tokenizer.vocab_size)
        encoded = tokenizer.encode_many([text.rstrip() for text in read(file)])
        for length in LENGTHS:
            ids, lengths = joined([ids[:length] for ids in encoded if len(ids) >= 0.9 * length])
            [counted], pairs = count_pairs([green], tokenizer, ids, lengths)
            expected = expected_shares(green, tokenizer, ids, lengths)
            tails = (binomial_tail(counted, pairs, share) for share in (0.5, expected))
            p[length] += zip(*tails, strict=True)
    rows = []
    for length, found in p.items():
        if not found:
            continue
        before, after = np.array(found).T
        row: dict[str, Any] = {"tokens": length, "texts": len(before)}
        for rate in (0.01, 0.001, 1e-6):
            for name, values in (("before", before), ("after", after)):
                row[f"found at {100 * rate:g} %, {name}"] = 100 * np.mean(values <= rate)
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0])]
    lines += [" | ".join(_cell(value) for value in row.values()) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", help="KIND=FILE")
    parser.add_argument("--marked", nargs="*", default=[], help="KEY=FILE")
    parser.add_argument("--tokenizer", default="embedded")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--texts", type=int, default=3000, help="at most, of each kind")
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.tokenizer)
    named = (kind.split("=", 1) for kind in arguments.kinds)
    kinds = {
        kind: cut(tokenizer, Path(file), arguments.tokens, arguments.texts) for kind, file in named
    }
    accused = rates(tokenizer, kinds, arguments.keys)
    pairs = [one.split("=", 1) for one in arguments.marked]
    found = power(tokenizer, [(Path(key), Path(file)) for key, file in pairs])
    if arguments.json:
        print(json.dumps({"hardware": describe(), "accused": accused, "found": found}))
        return
    print(table(accused))
    if found:
        print("\n" + table(found))


if __name__ == "__main__":
    main()
