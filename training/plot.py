"""Draw the training curve of a log that train.py wrote.

Usage: python training/plot.py run/log.jsonl --out curve.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure


def main() -> None:
    """Read the log and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.log.read_text().splitlines()]
    trained = [row for row in rows if "loss" in row]
    tested = [row for row in trained if "held_out" in row]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [row["seconds"] for row in trained],
        [row["loss"] for row in trained],
        label="training windows, all corpora",
    )
    axes.plot(
        [row["seconds"] for row in tested],
        [row["held_out"] for row in tested],
        "o-",
        label="held-out windows of the teacher",
    )
    axes.set_ylim(2, 4)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("evidence bound, nats a token")
    axes.legend()
    figure.savefig(arguments.out, dpi=150)


if __name__ == "__main__":
    main()
