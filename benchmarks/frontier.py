"""Read a frontier: what each strategy finds for the perplexity the paper's best one costs.

Usage: python benchmarks/frontier.py frontier/frontier.json

Reads the report of `dllmark reproduce frontier`, and the texts beside it to say how many of them
loop. What lies between two measured δ, or between no mark and the first, is taken on a straight
line.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from dllmark.experiments.paper import BEST as PAPER
from dllmark.experiments.paper import METHODS
from dllmark.experiments.settings import Setting
from dllmark.experiments.specs import ORDER
from dllmark.marking.strategies import STRATEGIES
from dllmark.quality.repetition import is_degenerate

OURS = tuple(name for name in STRATEGIES if name not in METHODS)
TPR, Z = "TPR at 1 % FPR", "mean z"

Row = dict[str, Any]
Point = dict[str, float]


def curve(rows: list[Row]) -> list[Point]:
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


def loops(texts: Path, setting: Setting, scored: int) -> str:
    """Return how many percent of a setting's texts are degenerate, or a dash without the texts."""
    path = texts / f"{setting.slug}.jsonl"
    if not path.exists():
        return "–"
    with path.open(encoding="utf-8") as lines:
        found = [is_degenerate(json.loads(line)["ids"][:scored]) for line in lines]
    return f"{100 * sum(found) / len(found):.0f}"


def measured(points: list[Point], cost: float | None) -> list[str]:
    """Return what a curve says; without a cost to compare with it is the paper's."""
    if cost is None:
        cells = [f"90 % for {percent(crossing(points, TPR, 90, 'increase'), '+.0f')}"]
    else:
        cells = [percent(best_within(points, cost), ".1f")]
    for known, value in ((TPR, 98), (Z, 5), (Z, 7)):
        cells.append(percent(crossing(points, known, value, "increase"), "+.0f"))
    return cells


def main() -> None:
    """Print a Markdown table, for each group a line a strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    path = parser.parse_args().report
    report = json.loads(path.read_text(encoding="utf-8"))
    scored = report["about"]["scored"]
    names = ["prompts, temperature, tokens a step", "strategy", "finds where P finds 90 %",
             "at 98 % TPR", "at z 5", "at z 7", "degenerate %, by δ"]  # fmt: skip
    print("| " + " | ".join(names) + " |")
    print("| --- " * len(names) + "|")

    def group(row: Row) -> tuple[str, float, int]:
        return row["prompts"], row["temperature"], row["tokens a step"]

    for (dataset, temperature, per_step), inside in groupby(
        sorted(report["rows"], key=group), key=group
    ):
        swept = list(inside)
        texts = path.parent / "texts" / dataset
        where = f"{dataset}, {temperature:g}, {per_step}"
        plain = Setting(None, temperature=temperature, per_step=per_step, order=ORDER)
        print(f"| {where} | unmarked | | | | | {loops(texts, plain, scored)} |")
        cost = None
        for name in (PAPER, *OURS):
            rows = [row for row in swept if row["strategy"] == name]
            cells = measured(curve(rows), cost)
            looped = [
                loops(texts, replace(plain, strategy=name, delta=row["δ"]), scored) for row in rows
            ]
            print("| " + " | ".join([where, name, *cells, ", ".join(looped)]) + " |")
            if name == PAPER:
                cost = crossing(curve(rows), TPR, 90, "increase")
                if cost is None:
                    raise SystemExit("the paper's strategy finds too little here to compare with")


if __name__ == "__main__":
    main()
