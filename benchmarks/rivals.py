"""Print the table of a comparison as the results page has it: fewer columns, and intervals.

Usage: python benchmarks/rivals.py REPORT.csv...

Reads what `dllmark reproduce rivals` wrote. A scheme of one strength is shown once, from the first
report that has it.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

SHARES = {"TPR at 1 %": "TPR at 1 %", "TPR at 0.1 %": "at 0.1 %"}
CHANGE = "PPL change % by judge {}"
DEGENERATE = "degenerate %"

Row = dict[str, str]


def share(row: Row, name: str) -> str:
    """Return a percentage with its interval.

    >>> share({"x": "99.4", "x, low": "98.1", "x, high": "100"}, "x")
    '99 (98–100)'
    """
    if not row.get(name):
        return "–"
    value, low, high = (float(row[part]) for part in (name, f"{name}, low", f"{name}, high"))
    return f"{value:.0f} ({low:.0f}–{high:.0f})"


def signed(value: float) -> str:
    """Return a whole number with its sign.

    >>> signed(-0.4), signed(3.2), signed(-7.9)
    ('0', '+3', '−8')
    """
    whole = round(value)
    return "0" if whole == 0 else f"{'+' if whole > 0 else '−'}{abs(whole)}"


def change(row: Row, name: str) -> str:
    """Return a change in percent with its interval."""
    if not row.get(name):
        return "–"
    value, low, high = (float(row[part]) for part in (name, f"{name}, low", f"{name}, high"))
    return f"{signed(value)} ({signed(low)} – {signed(high)})"


def cells(row: Row) -> list[str]:
    """Return a line of the table."""
    delta = float(row["δ"] or 0)
    found = [row["scheme"], f"{delta:g}" if delta else "–"]
    found.append(f"{float(row['mean z']):.1f}" if row["mean z"] else "–")
    found += [share(row, name) for name in SHARES]
    for number in (1, 2):
        perplexity = row.get(f"PPL by judge {number}")
        found.append(f"{float(perplexity):.1f}" if perplexity else "–")
        found.append(change(row, CHANGE.format(number)))
    return [*found, share(row, DEGENERATE), f"{float(row['distinct-2']):.2f}"]


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+")
    names = ["scheme", "δ", "mean z", *SHARES.values(), "perplexity by SmolLM2", "change, %",
             "by Qwen", "change, %", "degenerate, %", "distinct-2"]  # fmt: skip
    print("| " + " | ".join(names) + " |")
    print("| --- " * len(names) + "|")
    shown: set[tuple[str, str]] = set()
    for path in parser.parse_args().reports:
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if (row["scheme"], row["δ"]) not in shown:
                    shown.add((row["scheme"], row["δ"]))
                    print("| " + " | ".join(cells(row)) + " |")


if __name__ == "__main__":
    main()
