"""How fast detection is: counting against a loop over tokens, and whole texts with their tokenizer.

Usage: python benchmarks/detect.py [TEXTS.jsonl] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from hardware import describe
from siphash24 import siphash24

from dllmark import Detector, HashedGreenList, Tokenizer, WatermarkKey, load_tokenizer

LLADA_VOCABULARY = 126_464
GAMMA = 0.5


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time of some work, after one run to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def loop_like_the_reference(ids: list[int], key: int) -> int:
    """Count as the reference implementation does: seed, draw a whole green list, look one up."""
    green = 0
    shares = torch.full((LLADA_VOCABULARY,), GAMMA)
    for left, right in pairwise(ids):
        torch.manual_seed(left * key)
        green += bool(torch.bernoulli(shares)[right])
    return green


def plain_loop(ids: list[int], secret: bytes) -> int:
    """Count with our relation in the tightest loop over tokens we know: one C call a pair."""
    limit = int(GAMMA * 2**64)
    green = 0
    for left, right in pairwise(ids):
        digest = siphash24((left << 32 | right).to_bytes(8, "little"), key=secret).digest()
        green += int.from_bytes(digest, "little") < limit
    return green


def counting(key: WatermarkKey) -> dict[str, float]:
    """Measure pairs a second: ours, the reference's way, and a plain loop."""
    ids = np.random.default_rng(0).integers(0, LLADA_VOCABULARY, 1_000_001)
    listed = ids.tolist()
    green = HashedGreenList(key, LLADA_VOCABULARY)
    ours = int(green.pairs(ids[:-1], ids[1:]).sum())
    assert ours == plain_loop(listed, key.secret.reveal()), "both must count the same"
    secret = key.secret.reveal()
    return {
        "ours": 1e6 / seconds(lambda: green.pairs(ids[:-1], ids[1:])),
        "reference's loop": 2e2 / seconds(lambda: loop_like_the_reference(listed[:201], 7)),
        "plain loop, C SipHash": 1e5 / seconds(lambda: plain_loop(listed[:100_001], secret)),
    }


def whole_texts(key: WatermarkKey, tokenizer: Tokenizer, texts: list[str]) -> dict[str, float]:
    """Measure texts a second end to end, and the share of the tokenizer."""
    detector = Detector(key, tokenizer)
    total = seconds(lambda: list(detector.detect_many(texts)), 3)
    tokenizing = seconds(lambda: tokenizer.encode_many(texts), 3)
    tokens = sum(len(ids) for ids in tokenizer.encode_many(texts))
    return {
        "texts": len(texts),
        "tokens a text": tokens / len(texts),
        "texts a second": len(texts) / total,
        "tokens a second": tokens / total,
        "share of the tokenizer": tokenizing / total,
    }


def sample_texts(tokenizer: Tokenizer, count: int = 4000, length: int = 300) -> list[str]:
    """Make texts of random tokens, for a run without a corpus."""
    rng = np.random.default_rng(0)
    ordinary = np.flatnonzero(tokenizer.scored)[256:]
    return [tokenizer.decode(rng.choice(ordinary, length)) for _ in range(count)]


def main() -> None:
    """Run both measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="?", type=Path, help='JSONL with "text" in each line')
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer("embedded")
    key = WatermarkKey.generate(tokenizer.id, gamma=GAMMA)
    if arguments.texts:
        lines = arguments.texts.read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["text"] for line in lines]
    else:
        texts = sample_texts(tokenizer)
    pairs, whole = counting(key), whole_texts(key, tokenizer, texts)
    if arguments.json:
        print(json.dumps({"ran": describe(), "pairs a second": pairs, "whole texts": whole}))
        return
    print(describe())
    print(f"\nCounting pairs (vocabulary of {LLADA_VOCABULARY:,})")
    for name, rate in pairs.items():
        print(f"  {name:28} {rate:14,.0f} pairs/s   ours is {pairs['ours'] / rate:10,.1f} times it")
    print("\nWhole texts, embedded tokenizer")
    for name, value in whole.items():
        print(f"  {name:28} {value:14,.2f}")


if __name__ == "__main__":
    main()
