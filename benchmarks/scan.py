"""How fast a corpus is scanned: against the tokenizers alone, and how time and memory grow.

Usage: python benchmarks/scan.py [TEXTS.jsonl[.xz]] [--documents N ...] [--no-ray] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # floors are for one core
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy as np
from hardware import describe

from dllmark import Tokenizer, WatermarkKey, load_tokenizer
from dllmark.scan.encoding import Encoder
from dllmark.scan.plan import Piece, Shard
from dllmark.scan.reading import Columns
from dllmark.scan.rule import Rule
from dllmark.scan.scoring import Scorer
from dllmark.scan.work import ScanSettings, scan_shard

REFERENCE = "loop over the reference detector"
SAMPLE = 5000
"""Documents for what is measured in this process."""


BUSY = "import time; s = time.process_time()\nwhile time.process_time() - s < 0.5: pass"


def free_cores() -> float:
    """Return how many of two cores a program gets now: others may use the machine too."""
    start = time.perf_counter()
    both = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    for one in both:
        one.wait()
    return 2 * 0.5 / (time.perf_counter() - start)


def processor_seconds(works: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Return the least processor time of each work, measured in turn so that all fare alike."""
    least = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            least[name] = min(least[name], time.process_time() - start)
    return least


def real_texts(path: Path) -> Iterator[str]:
    """Yield the texts of a JSONL file."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as file:
        for line in file:
            yield json.loads(line)["text"]


def made_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield 20,000 texts of 300 random tokens, for a run without a corpus."""
    rng = np.random.default_rng(0)
    ordinary = np.flatnonzero(tokenizer.scored)[256:]
    for _ in range(20_000):
        yield tokenizer.decode(rng.choice(ordinary, 300))


def one_core(texts: list[str], key: WatermarkKey, folder: Path) -> dict[str, Any]:
    """Measure on one core: each part alone, a whole shard, and the tokenizer's share of that."""
    from detect import loop_like_the_reference

    encoder = Encoder(load_tokenizer("embedded"))
    backend = encoder.tokenizer._backend
    ids, lengths = encoder.encode(texts)
    path = folder / "sample.jsonl"
    path.write_bytes(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    settings, scorer = ScanSettings((key,), Rule(), Columns()), Scorer([key], Rule().rate)
    shard = Shard(0, (Piece(str(path)),))

    slow = Scorer([key], 1e-6)
    [slow_encoder], [fast_encoder] = slow._encoders.values(), scorer._encoders.values()
    slow_encoder.__dict__["fast"] = None

    def whole(scorer: Scorer) -> None:
        with (folder / "rows").open("wb") as rows, (folder / "errors").open("wb") as errors:
            scan_shard(shard, settings, scorer, rows, errors)

    listed = ids[:201].tolist()
    times = processor_seconds(
        {
            "tokenizers alone (floor)": lambda: backend.encode_batch_fast(
                texts, add_special_tokens=False
            ),
            "fastokens alone (floor)": lambda: encoder.fast.encode_batch_flat(texts),
            "scan of a shard, with fastokens": lambda: whole(scorer),
            "scan of a shard, with tokenizers": lambda: whole(slow),
            REFERENCE: lambda: loop_like_the_reference(listed, 7),
        }
    )
    rates = {name: (200 if name == REFERENCE else len(ids)) / t for name, t in times.items()}
    inside = Inside(fast_encoder.fast.encode_batch_flat)
    fast_encoder.__dict__["fast"] = SimpleNamespace(encode_batch_flat=inside)
    shares = {"fastokens": inside.shares(lambda: whole(scorer))}
    inside = slow_encoder.tokenizer._encodings = Inside(slow_encoder.tokenizer._encodings)
    shares["tokenizers"] = inside.shares(lambda: whole(slow))
    return {"rates": rates, "shares": shares, "tokens a document": float(lengths.mean())}


class Inside:
    """A function that adds up the processor time spent inside it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._spent = function, 0.0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function."""
        start = time.process_time()
        result = self._function(*arguments, **named)
        self._spent += time.process_time() - start
        return result

    def shares(self, work: Callable[[], object], rounds: int = 9) -> list[float]:
        """Return its share of some work, round by round, in order of size.

        Both times are of the same round: how fast the machine is just then does not matter.
        """
        found = []
        for _ in range(rounds):
            self._spent, start = 0.0, time.process_time()
            work()
            found.append(self._spent / (time.process_time() - start))
        return sorted(found)


MEASURED = """
import resource, sys
from pathlib import Path
from dllmark.commands.cli import main
try:
    main()
finally:
    status = Path("/proc/self/status").read_text()
    own = int(status.split("VmHWM:")[1].split()[0])
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(max(own, workers), file=sys.stderr)
"""
"""Runs the command and says how much memory its largest process had, in kB (not Ray's workers)."""


def scan(corpus: Path, key: Path, folder: Path, *options: object) -> dict[str, Any]:
    """Run the command in a process of its own; return its time and its memory."""
    command = [sys.executable, "-c", MEASURED, "scan", corpus, "--key", key, "-o", folder, *options]
    start = time.perf_counter()
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    peak = int(done.stderr.splitlines()[-1]) / 1024
    return {"seconds": time.perf_counter() - start, "peak MB": peak}


def write_corpus(path: Path, texts: list[str], count: int) -> int:
    """Write documents into one JSONL file, starting over where texts run out; return its bytes."""
    with path.open("wb") as file:
        for number, text in enumerate(itertools.islice(itertools.cycle(texts), count)):
            file.write(json.dumps({"id": number, "text": text}).encode() + b"\n")
    return path.stat().st_size


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="?", type=Path, help='JSONL with "text" in each line')
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer("embedded")
    source = real_texts(arguments.texts) if arguments.texts else made_texts(tokenizer)
    texts = list(itertools.islice(source, max(arguments.documents)))
    key = WatermarkKey.generate(tokenizer.id)
    result: dict[str, Any] = {"ran": describe(), "texts": len(texts)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key.save(folder / "my.key")
        result["one core"] = one_core(texts[:SAMPLE], key, folder)
        mean = result["one core"]["tokens a document"]
        result["runs"] = []
        for count in arguments.documents:
            corpus = folder / f"{count}.jsonl"
            size = write_corpus(corpus, texts, count)
            engines = [("local", 2)]
            if count == max(arguments.documents):
                engines += [("local", 1)] + [("ray", 2), ("ray", 1)] * (not arguments.no_ray)
            for engine, workers in engines:
                out = folder / f"{count}-{engine}-{workers}"
                options = ["--engine", engine, "--workers", workers]
                free = free_cores()
                run = scan(corpus, folder / "my.key", out, *options)
                result["runs"].append(
                    {"engine": engine, "workers": workers, "documents": count, "bytes": size,
                     "documents/s": count / run["seconds"], "free cores": free,
                     "tokens/s": count * mean / run["seconds"], **run}
                )  # fmt: skip
                print(json.dumps(result["runs"][-1]), file=sys.stderr, flush=True)
            corpus.unlink()
    print(json.dumps(result)) if arguments.json else report(result)


def report(result: dict[str, Any]) -> None:
    """Print the measurements for people."""
    print(result["ran"])
    rates, shares = result["one core"]["rates"], result["one core"]["shares"]
    floor, fast = rates["tokenizers alone (floor)"], rates["fastokens alone (floor)"]
    print("\nOne core, processor time, no start-up")
    for name, rate in rates.items():
        against = f"{rate / floor:9.3g} of tokenizers  {rate / fast:9.3g} of fastokens"
        print(f"  {name:34} {rate:12,.0f} tokens/s {against}")
    for name, found in shares.items():
        middle = found[len(found) // 2]
        print(
            f"  share of {name} in a scan with it: median {middle:.0%} of {len(found)} rounds, "
            f"from {found[0]:.0%} to {found[-1]:.0%}"
        )
    print("\nThe whole command, with start-up and summary")
    print(
        "  engine workers documents       MB  seconds documents/s   tokens/s  peak MB  cores free"
    )
    for run in result["runs"]:
        print(
            f"  {run['engine']:6} {run['workers']:7} {run['documents']:9,} "
            f"{run['bytes'] / 1e6:8,.0f} {run['seconds']:8.1f} {run['documents/s']:11,.0f} "
            f"{run['tokens/s']:10,.0f} {run['peak MB']:8,.0f} {run['free cores']:11.1f}"
        )


if __name__ == "__main__":
    main()
