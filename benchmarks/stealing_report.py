"""Tables and plots of what benchmarks/stealing.py measured.

Usage: python benchmarks/stealing_report.py DIR

Reads the JSON files of the parts in DIR, prints tables in Markdown, and draws DIR/forging.svg and
DIR/scrubbing.svg.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

matplotlib.rcParams["svg.hashsalt"] = "stealing"  # the same file from the same rows

Rows = list[dict[str, Any]]

NAMES = {
    "neighbours": "neighbours (dllmark)",
    "unigram": "unigram",
    "lag-2": "lag 2",
    "two-before": "two tokens before",
}


def rows_of(folder: Path, part: str) -> Rows:
    """Return the rows of one part, none where it was not measured."""
    path = folder / f"{part}.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else []


def mean(rows: Rows, *names: str) -> float:
    """Return the mean of an entry over rows."""
    values = []
    for row in rows:
        value: Any = row
        for name in names:
            value = value[name]
        values.append(value)
    return float(np.mean(values))


def by_size(rows: Rows) -> dict[int, Rows]:
    """Group rows by the number of texts stolen from."""
    return {size: [row for row in rows if row["texts"] == size]
            for size in sorted({row["texts"] for row in rows})}  # fmt: skip


def percent(share: float) -> str:
    """Return a share in percent, with a digit behind the point below ten."""
    return f"{100 * share:.1f}" if 0 < share < 0.0995 else f"{100 * share:.0f}"


def table(header: list[str], lines: list[list[str]]) -> None:
    """Print a Markdown table."""
    print("\n| " + " | ".join(header) + " |")
    print("| --- " * len(header) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")


def curves(folder: Path) -> None:
    """Print and draw what a thief can do, relation by relation."""
    forging, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    scrubbing, below = pyplot.subplots(figsize=(4.8, 3.6))
    lines = []
    for part, name in NAMES.items():
        groups = by_size(rows_of(folder, part))
        for size, rows in groups.items():
            forged = [percent(mean(rows, who, rate))
                      for who in ("own", "same") for rate in ("0.01", "1e-06")]  # fmt: skip
            first = [row for row in rows if "scrubbed" in row]
            removed = [percent(mean(first, "scrubbed", ratio, "removed")) if first else ""
                       for ratio in ("0.1", "0.2")]  # fmt: skip
            lines.append([name, f"{size:,}", *forged, *removed])
        sizes = [size for size in groups if size]
        for axis, who in zip(axes, ("own", "same"), strict=True):
            axis.plot(sizes, [100 * mean(groups[size], who, "1e-06") for size in sizes],
                      marker="o", markersize=3, label=name)  # fmt: skip
        with_scrub = [size for size in sizes if any("scrubbed" in row for row in groups[size])]
        removed_there = [
            100 * mean([row for row in groups[size] if "scrubbed" in row],
                       "scrubbed", "0.2", "removed") for size in with_scrub
        ]  # fmt: skip
        below.plot(with_scrub, removed_there, marker="o", markersize=3, label=name)
    table(["relation", "texts", "own, 1 %", "own, 1e-6", "same, 1 %", "same, 1e-6",
           "removed, 10 %", "removed, 20 %"], lines)  # fmt: skip
    for axis, title in zip(axes, ("its own subject", "the same subject"), strict=True):
        axis.set(xscale="log", xlabel="marked texts stolen from", title=title)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("forged texts accepted at 1e-6, %")
    axes[0].legend(fontsize=7)
    below.set(xscale="log", xlabel="marked texts stolen from",
              ylabel="marks removed, %", title="one token in five changed")  # fmt: skip
    below.grid(alpha=0.3)
    below.legend(fontsize=7)
    for figure, file in ((forging, "forging.svg"), (scrubbing, "scrubbing.svg")):
        figure.tight_layout()
        figure.savefig(folder / file, metadata={"Date": None})


def limit(folder: Path) -> None:
    """Print how few texts are enough."""
    lines = []
    for size, rows in by_size(rows_of(folder, "limit")).items():
        worst = max(row["own"]["1e-06"] for row in rows)
        shares = [percent(mean(rows, who, rate))
                  for who in ("own", "same") for rate in ("0.01", "0.0001", "1e-06")]  # fmt: skip
        lines.append([str(size), *shares, percent(worst)])
    table(["texts", "own, 1 %", "own, 1e-4", "own, 1e-6", "same, 1 %", "same, 1e-4", "same, 1e-6",
           "own, 1e-6, worst key"], lines)  # fmt: skip


def others(folder: Path) -> None:
    """Print lengths, confirmation, and the check against the model."""
    kinds = ["marked", *(f"forged from {size}" for size in (10, 30, 100, 1000))]
    rates = {"1 %": "0.01", "1e-4": "0.0001", "1e-6": "1e-06"}
    table(["tokens", "texts", *rates],
          [[str(row["length"]), kind, *(percent(row[kind][rate]) for rate in rates.values())]
           for row in rows_of(folder, "lengths") for kind in kinds])  # fmt: skip
    lines = []
    for row in rows_of(folder, "confirm"):
        cells = [f"{row['extra bias']:g}", f"{row['perplexity']:.2f}"]
        thieves = [f"forged from {size}, {who}" for size in (30, 100, 1000)
                   for who in ("one", "both")]  # fmt: skip
        cells += [f"{percent(row[kind]['at 1e-6'])} / {percent(row[kind]['confirmed'])}"
                  for kind in ("marked", *thieves)]  # fmt: skip
        lines.append(cells)
    table(["extra bias", "perplexity", "marked", "30, one", "30, both", "100, one", "100, both",
           "1000, one", "1000, both"], lines)  # fmt: skip
    lines = []
    for row in rows_of(folder, "check"):
        cells = [percent(row[who][entry]) for who in ("own", "same")
                 for entry in ("green share", "0.01", "1e-06")]  # fmt: skip
        about = [row["texts of"], str(row["texts"]), f"{row['distinct pairs']:.0f}"]
        lines.append([*about, percent(row["green share"]), *cells])
    table(["texts of", "texts", "distinct pairs", "green", "own: green", "own, 1 %", "own, 1e-6",
           "same: green", "same, 1 %", "same, 1e-6"], lines)  # fmt: skip


def main() -> None:
    """Print every table, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    curves(folder)
    limit(folder)
    others(folder)


if __name__ == "__main__":
    main()
