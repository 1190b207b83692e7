"""Payloads: how often the right one is named, how often people's texts are accused, and how fast.

Usage: python benchmarks/payloads.py outcomes TEXTS.jsonl --key my.key --payload 4711
       python benchmarks/payloads.py people TEXTS.jsonl [--bits 8] [--keys 10] [--tokens 100]
       python benchmarks/payloads.py speed [--device cuda] [--bits 16]

`outcomes` reads what `dllmark generate --payload` wrote, detects it at several lengths, and draws
what other sizes of payload would have given: the right payload's pairs are green at the rate of one
of the texts, those of all other payloads with probability γ. `people` counts verdicts on texts
that nobody marked. `speed` is processor time, or the clock's where a device is named.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np

from dllmark import Detector, PayloadDetector, Payloads, WatermarkKey, load_tokenizer
from dllmark.detection.any_key import AnyKeyDetector
from dllmark.detection.payload import SCREENED, Screen, _log_probabilities
from dllmark.detection.stats import family_wise, share_interval
from dllmark.relation.key import Secret

LENGTHS = (50, 100, 200, 400)
BITS = (8, 16, 20)
RATES = (0.01, 0.001, 0.0001)
OUTCOMES = ("right", "unclear", "wrong", "not detected", "too short")


@lru_cache
def screen_of(first: int, rest: int) -> Screen:
    """Return the chances of counting so many pairs in two parts."""
    return Screen(first, rest, 0.5)


def drawn(rng: np.random.Generator, pairs: int, rate: float, bits: int, fpr: float) -> str:
    """Return what becomes of a text, with the green pairs of all payloads drawn by chance."""
    payloads = 1 << bits
    first = -(-pairs // 3) if payloads > SCREENED else 0
    screen = screen_of(first, pairs - first)
    if family_wise(0.5**pairs, payloads) > fpr:
        return "too short"
    wrong = rng.multinomial(payloads - 1, np.exp(_log_probabilities(first, 0.5)))
    reached = np.repeat(np.arange(screen.least, first + 1), wrong[screen.least :])
    others = reached + rng.binomial(screen.rest, 0.5, len(reached))
    left_out = np.repeat(np.arange(screen.least), wrong[: screen.least])
    right_first = rng.binomial(first, rate)
    right = right_first + rng.binomial(screen.rest, rate) if right_first >= screen.least else -1
    if right < 0:
        left_out = np.append(left_out, right_first)
    best = max(right, int(others.max()))
    if family_wise(screen.chance(best, 0.5), payloads) > fpr:
        return "not detected"
    if right > others.max():
        return "right" if screen.doubt(right, others, left_out) <= fpr else "unclear"
    rest = np.delete(np.append(others, right) if right >= 0 else others, int(others.argmax()))
    return "wrong" if screen.doubt(best, rest, left_out) <= fpr else "unclear"


def outcomes(arguments: argparse.Namespace) -> None:
    """Print what becomes of marked texts at each length."""
    key = WatermarkKey.load(arguments.key)
    space = Payloads(arguments.bits)
    payload = space.parse(arguments.payload)
    texts = [json.loads(line)["ids"] for line in arguments.texts.open()]
    alone, every = Detector(space.key(key, payload)), PayloadDetector(key, space)
    rng = np.random.default_rng(0)
    print(f"{len(texts)} texts with a payload of {arguments.bits} bits")
    print("| tokens | distinct pairs | green | detected: right / unclear / wrong / missed |")
    seen = {}
    for length in LENGTHS:
        cut = [ids[:length] for ids in texts if len(ids) >= length]
        found = list(alone.detect_many(cut))
        seen[length] = [(one.pairs, one.green_fraction) for one in found]
        real: Counter[str] = Counter()
        for ids in cut:
            one = every.detect(ids)
            named = "right" if one.payload == payload else "wrong"
            marked = "unclear" if one.payload is None else named
            real[marked if one.verdict.value == "watermarked" else one.verdict.value] += 1
        pairs, green = np.mean(seen[length], axis=0)
        row = " / ".join(str(real[name]) for name in OUTCOMES[:3])
        print(f"| {length} | {pairs:.0f} | {100 * green:.1f} % | {row} / "
              f"{real['not detected'] + real['too short']} |", flush=True)  # fmt: skip
    report(rng, "the texts' own pairs and rates", arguments, seen)
    for rate in arguments.rates:
        report(rng, f"green rate {rate:g}", arguments, {
            length: [(pairs, rate) for pairs, _ in rows] for length, rows in seen.items()
        })  # fmt: skip


def report(
    rng: np.random.Generator,
    title: str,
    arguments: argparse.Namespace,
    seen: dict[int, list[tuple[int, float]]],
) -> None:
    """Print a table of drawn outcomes, in percent."""
    print(f"\n{title}: {arguments.draws} draws a row, at {arguments.fpr:g}")
    print("| bits | tokens | " + " | ".join(OUTCOMES) + " |")
    for bits in BITS:
        for length, rows in seen.items():
            chosen = (rows[n] for n in rng.integers(0, len(rows), arguments.draws))
            drawings = Counter(
                drawn(rng, pairs, min(rate, 0.999), bits, arguments.fpr) for pairs, rate in chosen
            )
            shares = " | ".join(
                f"{100 * drawings[name] / arguments.draws:.1f}" for name in OUTCOMES
            )
            print(f"| {bits} | {length} | {shares} |", flush=True)


def people(arguments: argparse.Namespace) -> None:
    """Print how many of people's texts are taken for marked with any payload."""
    tokenizer = load_tokenizer("embedded")
    texts = [json.loads(line)["text"] for line in arguments.texts.open()][: arguments.count]
    encoded = [ids[: arguments.tokens] for ids in tokenizer.encode_many(texts)]
    encoded = [ids for ids in encoded if len(ids) == arguments.tokens]
    rng = np.random.default_rng(0)
    p_values, named = [], 0
    for _ in range(arguments.keys):
        key = WatermarkKey(Secret(rng.bytes(16)), 0.5, tokenizer.id)
        detector = PayloadDetector(key, Payloads(arguments.bits), tokenizer)
        for ids in encoded:
            found = detector.detect(ids)
            p_values.append(found.p_value)
            named += found.payload is not None
    total = len(p_values)
    print(f"{len(encoded)} texts of {arguments.tokens} tokens, {arguments.keys} keys, "
          f"{arguments.bits} bits: a payload was named in {named} of {total}")  # fmt: skip
    print("| rate | taken for marked | share | 95 % |")
    for rate in RATES:
        hits = int((np.array(p_values) <= rate).sum())
        share = share_interval(hits, total)
        print(f"| {100 * rate:g} % | {hits} | {100 * share.share:.3f} % | "
              f"{100 * share.low:.3f} to {100 * share.high:.3f} % |")  # fmt: skip


def speed(arguments: argparse.Namespace) -> None:
    """Print how long a text of 200 tokens takes."""
    tokenizer = load_tokenizer("embedded")
    key = WatermarkKey(Secret(bytes(range(16))), 0.5, tokenizer.id)
    ids = np.random.default_rng(0).integers(300, 9000, 200)
    clock, place = time.process_time, None
    if arguments.device:
        import torch

        def place(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(arguments.device)

        clock = time.perf_counter
    start = clock()
    detector = PayloadDetector(key, Payloads(arguments.bits), tokenizer, place=place)
    print(f"{1 << arguments.bits:,} payloads: {clock() - start:.2f} s to derive their keys, once")
    for _ in range(3):
        start = clock()
        detector.detect(ids)
        print(f"{1 << arguments.bits:,} payloads: {clock() - start:.3f} s a text")
    if not arguments.device:
        keys = [key.derive(str(number)) for number in range(10_000)]
        ring = AnyKeyDetector([Detector(one, tokenizer) for one in keys])
        for _ in range(3):
            start = clock()
            ring.detect(ids)
            print(f"10,000 keys: {clock() - start:.3f} s a text")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    marked = commands.add_parser("outcomes")
    marked.add_argument("texts", type=Path)
    marked.add_argument("--key", type=Path, required=True)
    marked.add_argument("--payload", required=True)
    marked.add_argument("--bits", type=int, default=16)
    marked.add_argument("--fpr", type=float, default=0.01)
    marked.add_argument("--draws", type=int, default=200)
    marked.add_argument("--rates", type=float, nargs="*", default=[0.7])
    unmarked = commands.add_parser("people")
    unmarked.add_argument("texts", type=Path)
    unmarked.add_argument("--bits", type=int, default=8)
    unmarked.add_argument("--keys", type=int, default=10)
    unmarked.add_argument("--tokens", type=int, default=100)
    unmarked.add_argument("--count", type=int, default=None)
    timed = commands.add_parser("speed")
    timed.add_argument("--device", default="")
    timed.add_argument("--bits", type=int, default=16)
    arguments = parser.parse_args()
    {"outcomes": outcomes, "people": people, "speed": speed}[arguments.command](arguments)


if __name__ == "__main__":
    main()
