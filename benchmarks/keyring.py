"""How long a key ring takes: reading its record and secrets, and detecting one text with all keys.

Also how long a key file with a passphrase takes to open.

Times are of the processor, on one core. Usage:
OMP_NUM_THREADS=1 python benchmarks/keyring.py [--keys 10000] [--tokens 200] [--files] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from hardware import describe

from dllmark import KeyRing, WatermarkKey, load_tokenizer
from dllmark.detection.any_key import key_detector
from dllmark.relation.key import Secret

REPEATS = 5


def make_ring(folder: Path, count: int, files: bool) -> None:
    """Fill a ring with keys that a master derives, or with keys that have files of their own."""
    tokenizer = load_tokenizer("embedded")
    ring = KeyRing.create(folder)
    ring.add(WatermarkKey.generate(tokenizer.id), "master")
    if not files:
        ring.derive_all([f"customer-{number}" for number in range(1, count)])
        return
    for number in range(1, count):
        ring.add(WatermarkKey.generate(tokenizer.id), f"customer-{number}")


def measure(folder: Path, tokens: int) -> dict[str, float]:
    """Return the seconds of each part, medians of several runs, and how many keys were tried."""
    tokenizer = load_tokenizer("embedded")
    rng = np.random.default_rng(0)
    ids = rng.choice(np.flatnonzero(tokenizer.scored), tokens)
    rows: list[list[float]] = []
    for _ in range(REPEATS):
        moments = [time.process_time()]
        ring = KeyRing(folder)
        moments.append(time.process_time())
        keys = ring.all_keys()
        moments.append(time.process_time())
        detector = key_detector(keys, [tokenizer])
        moments.append(time.process_time())
        tried = detector.detect(ids).keys_tried
        moments.append(time.process_time())
        ring.current()
        moments.append(time.process_time())
        rows.append(np.diff(moments).tolist())
    names = ("read the record", "make the secrets", "make the detector", "detect", "current key")
    medians = (statistics.median(column) for column in zip(*rows, strict=True))
    return {"keys": tried, **dict(zip(names, medians, strict=True))}


def unlock(folder: Path) -> float:
    """Return the seconds that opening a key with a passphrase takes."""
    path, passphrase = folder / "locked.key", Secret(b"correct horse battery staple")
    WatermarkKey.generate(load_tokenizer("embedded").id).save(path, passphrase)
    start = time.process_time()
    WatermarkKey.load(path, lambda _: passphrase)
    return time.process_time() - start


def main() -> None:
    """Make a ring, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--files", action="store_true", help="a file for each key")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_ring(Path(folder) / "ring", arguments.keys, arguments.files)
        result = measure(Path(folder) / "ring", arguments.tokens)
        result["unlock a key file"] = unlock(Path(folder))
    if arguments.json:
        print(json.dumps({"ran": describe(), "tokens": arguments.tokens, **result}))
        return
    print(describe())
    print(f"{result.pop('keys'):,} keys, a text of {arguments.tokens} tokens; seconds on one core:")
    for name, value in result.items():
        print(f"  {name:20} {value:8.3f}")


if __name__ == "__main__":
    main()
