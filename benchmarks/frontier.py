"""Read a frontier: what each strategy finds for the perplexity the paper's best one costs.

Usage: python benchmarks/frontier.py frontier.json

Reads the report of `dllmark reproduce frontier`. What lies between two measured δ, or between no
mark and the first, is taken on a straight line.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby, pairwise
from pathlib import Path

from dllmark.experiments.paper import BEST as PAPER
from dllmark.experiments.paper import METHODS
from dllmark.marking.strategies import BIASES

OURS = tuple(name for name in BIASES if name not in METHODS)
TPR, Z = "TPR at 1 % FPR", "mean z"

Point = dict[str, float]


def curve(rows: list[dict[str, float]]) -> list[Point]:
    """Return the points of a strategy, from no mark on, with the perplexity as an increase in %."""
    points = [{"increase": 0.0, TPR: 1.0, Z: 0.0}]
    for row in sorted(rows, key=lambda row: row["δ"]):
        increase = 100 * (row["median PPL"] / row["clean PPL"] - 1)
        points.append({"increase": increase, TPR: row[TPR], Z: row[Z]})
    return points


def crossing(points: list[Point], known: str, value: float, wanted: str) -> float | None:
    """Return `wanted` where `known` first reaches a value.

    >>> crossing([{"x": 0, "y": 0}, {"x": 2, "y": 10}], "x", 1, "y")
    5.0
    """
    for before, after in pairwise(points):
        if before[known] < value <= after[known]:
            part = (value - before[known]) / (after[known] - before[known])
            return before[wanted] + part * (after[wanted] - before[wanted])
    return None


def best_within(points: list[Point], increase: float) -> float | None:
    """Return the highest TPR that costs at most this increase; None where nothing is as cheap."""
    rates: list[float | None] = [p[TPR] for p in points if p["increase"] <= increase]
    rates.append(crossing(points, "increase", increase, TPR))
    return max((rate for rate in rates if rate is not None), default=None)


def percent(value: float | None, form: str) -> str:
    """Return a number for the table, or a dash."""
    return "–" if value is None else f"{value:{form}} %"


def cells(curves: dict[str, list[Point]]) -> list[str]:
    """Return what one group of curves says, the paper's strategy first."""
    cost = crossing(curves[PAPER], TPR, 90, "increase")
    if cost is None:
        raise SystemExit("the paper's strategy finds too little here to compare with")
    row = [percent(cost, "+.0f")]
    row += [percent(best_within(curves[name], cost), ".1f") for name in OURS]
    for known, value in ((TPR, 98), (Z, 5), (Z, 7)):
        for name in (PAPER, *OURS):
            row.append(percent(crossing(curves[name], known, value, "increase"), "+.0f"))
    return row


def main() -> None:
    """Print a Markdown table, a line a group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    rows = json.loads(parser.parse_args().report.read_text(encoding="utf-8"))["rows"]
    names = ["perplexity where P finds 90 %", "E finds there", "G finds there"]
    names += [f"{letter} at {what}" for what in ("98 % TPR", "z 5", "z 7") for letter in "PEG"]
    print("| " + " | ".join(["prompts, temperature, tokens a step", *names]) + " |")
    print("| --- " * (len(names) + 1) + "|")

    def group(row: dict[str, float]) -> tuple[float, ...]:
        return row["prompts"], row["temperature"], row["tokens a step"]

    for place, inside in groupby(sorted(rows, key=group), key=group):
        swept = list(inside)
        curves = {name: curve([row for row in swept if row["strategy"] == name])
                  for name in (PAPER, *OURS)}  # fmt: skip
        where = f"{place[0]}, {place[1]:g}, {place[2]}"
        print("| " + " | ".join([where, *cells(curves)]) + " |")


if __name__ == "__main__":
    main()
