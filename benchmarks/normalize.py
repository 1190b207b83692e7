"""What `--normalize` does to clean texts, and how much of two attacks it takes back.

Usage: python benchmarks/normalize.py TEXTS.jsonl [--field text] [--keys 20] [--json]

Clean: the share of texts it changes, and for those the change of z and of verdicts at 1 %, under
several keys. Attacked: the share of the clean text's pairs of tokens that are left, and the share
after normalising.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from hardware import describe

from dllmark import Detector, Tokenizer, WatermarkKey, load_tokenizer
from dllmark.attacks.characters import change_spaces, homoglyphs, zero_width
from dllmark.detection.normalize import normalize
from dllmark.relation.key import Secret

RATIOS = (0.05, 0.2, 1.0)


def clean(tokenizer: Tokenizer, texts: list[str], keys: int) -> dict[str, float]:
    """Measure what normalising changes in texts that nobody attacked."""
    normal = [normalize(text) for text in texts]
    changed = [at for at, text in enumerate(texts) if normal[at] != text]
    moves, verdicts, false = [], 0, Counter()
    for number in range(keys):
        secret = Secret(number.to_bytes(16, "little"))
        detector = Detector(WatermarkKey(secret, 0.5, tokenizer.id), tokenizer)
        before, after = (list(detector.detect_many(version)) for version in (texts, normal))
        moves += [after[at].z - before[at].z for at in changed]
        verdicts += sum(after[at].verdict != before[at].verdict for at in changed)
        false["as they are"] += sum(found.p_value <= 0.01 for found in before)
        false["normalised"] += sum(found.p_value <= 0.01 for found in after)
    scored = keys * len(texts)
    return {
        "texts": len(texts),
        "changed texts, %": 100 * len(changed) / len(texts),
        "changed characters in a million": 1e6 * _differences(texts, normal),
        "mean |change of z| where changed": float(np.abs(moves).mean()) if moves else 0.0,
        "largest |change of z|": float(np.abs(moves).max()) if moves else 0.0,
        "changed verdicts at 1 %, % of all": 100 * verdicts / scored,
        "false positives at 1 % as they are, %": 100 * false["as they are"] / scored,
        "false positives at 1 % normalised, %": 100 * false["normalised"] / scored,
    }


def _differences(texts: list[str], normal: list[str]) -> float:
    """Return the share of characters that are lost or replaced."""
    lost = sum(
        (Counter(text) - Counter(other)).total() for text, other in zip(texts, normal, strict=True)
    )
    return lost / sum(map(len, texts))


def recovered(tokenizer: Tokenizer, texts: list[str]) -> list[dict[str, float | str]]:
    """Measure how many pairs of neighbouring tokens survive an attack, and normalising after it."""
    rows: list[dict[str, float | str]] = []
    wanted = [_pairs(tokenizer, normalize(text)) for text in texts]
    for attack in (homoglyphs, zero_width, change_spaces):
        for ratio in RATIOS:
            attacked = [
                attack(text, ratio, np.random.default_rng([0, at])) for at, text in enumerate(texts)
            ]
            shares = []
            for version in (attacked, map(normalize, attacked)):
                kept = sum(
                    (pairs & _pairs(tokenizer, text)).total()
                    for pairs, text in zip(wanted, version, strict=True)
                )
                shares.append(100 * kept / sum(pairs.total() for pairs in wanted))
            rows.append({
                "attack": attack.__name__, "ratio": ratio,
                "pairs left, %": shares[0], "normalised, %": shares[1],
            })  # fmt: skip
    return rows


def _pairs(tokenizer: Tokenizer, text: str) -> Counter[tuple[int, int]]:
    return Counter(pairwise(tokenizer.encode(text).tolist()))


def main() -> None:
    """Measure the texts of a file and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--field", default="text")
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)[arguments.field] for line in lines]
    tokenizer = load_tokenizer("embedded")
    result = {"clean": clean(tokenizer, texts, arguments.keys)}
    rows = recovered(tokenizer, texts[:200])
    if arguments.json:
        print(json.dumps({"ran": describe(), **result, "attacked": rows}))
        return
    print(f"{describe()}\n\nClean texts, {arguments.keys} keys")
    for name, value in result["clean"].items():
        print(f"  {name:40} {value:10,.3f}")
    print("\nAttacked texts, the first 200: pairs of tokens as in the clean text, %")
    for row in rows:
        name, ratio, left, after = row.values()
        print(f"  {name:14} ratio {ratio:4}   as it is {left:6.1f}   normalised {after:6.1f}")


if __name__ == "__main__":
    main()
