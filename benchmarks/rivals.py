"""Print the table of a comparison as the results page has it: fewer columns, and intervals.

Usage: python benchmarks/rivals.py REPORT.csv...
       python benchmarks/rivals.py --setting NAME REPORT.csv... [--setting NAME REPORT.csv...]...
                                   [--plot FILE.png]

Reads what `dllmark reproduce rivals` wrote. A scheme of one strength is shown once, from the first
report that has it. With settings, each is one line: what every scheme finds at 0.1 %, and the
change of perplexity by both judges; a star where it has 3 points more degenerate texts than its
unmarked ones. A setting's name begins with the temperature; one without reports is a heading.
The plot has a panel for each setting.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

SHARES = {"TPR at 1 %": "TPR at 1 %", "TPR at 0.1 %": "at 0.1 %"}
CHANGE = "PPL change % by judge {}"
DEGENERATE = "degenerate %"

COMPARED = {"cooled-joint": 10.8, "adaptive-joint": 5.4, "joint": 3.6, "gumbel": 0.0,
            "kgw-left-to-right": 2.0, "engine-fresh": 2.0, "expected-bidirectional": 2.0,
            "gloaguen": 4.0, "unigram": 2.0, "dgmark": 0.0}  # fmt: skip
"""The schemes of a line, and their strengths."""

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
    found = [row["scheme"], f"{delta:.4g}" if delta else "–"]
    found.append(f"{float(row['mean z']):.1f}" if row["mean z"] else "–")
    found += [share(row, name) for name in SHARES]
    for number in (1, 2):
        perplexity = row.get(f"PPL by judge {number}")
        found.append(f"{float(perplexity):.1f}" if perplexity else "–")
        found.append(change(row, CHANGE.format(number)))
    return [*found, share(row, DEGENERATE), f"{float(row['distinct-2']):.2f}"]


def summary(row: Row, unmarked: Row) -> str:
    """Return what a scheme finds and costs.

    >>> row = {"TPR at 0.1 %": "99.4", "PPL change % by judge 1": "3.2", "degenerate %": "9"}
    >>> summary(row, {"degenerate %": "5"})
    '99: +3*'
    """
    costs = [row.get(CHANGE.format(number)) for number in (1, 2)]
    more = float(row[DEGENERATE]) - float(unmarked[DEGENERATE]) > 3
    found = f"{float(row['TPR at 0.1 %']):.0f}"
    changes = ", ".join(signed(float(cost)) for cost in costs if cost)
    return (f"{found}: {changes}" if changes else found) + "*" * more


def line(name: str, reports: list[Path]) -> list[str]:
    """Return what every scheme finds and costs in one setting, or a heading.

    >>> line("larger model", [])[:2]
    ['**larger model**', '']
    """
    if not reports:
        return [f"**{name}**", *("" for _ in COMPARED)]
    found: dict[str, str] = {}
    for path in reports:
        rows = read(path)
        unmarked = {row["scheme"]: row for row in rows if not row["TPR at 0.1 %"]}
        for row in rows:
            scheme = row["scheme"]
            if scheme in COMPARED and float(row["δ"] or 0) == COMPARED[scheme]:
                own = "unmarked, left to right" if "left" in scheme else "unmarked"
                found.setdefault(scheme, summary(row, unmarked.get(own, unmarked["unmarked"])))
    return [name, *(found.get(scheme, "–") for scheme in COMPARED)]


def strengths(reports: list[Path]) -> dict[str, list[Row]]:
    """Return the rows of each scheme, all from the first report that compares it.

    Other reports have other keys, blocks or unmarked texts, so no line may join their rows.
    """
    found: dict[str, list[Row]] = {}
    for path in reports:
        rows = read(path)
        for scheme, compared in COMPARED.items():
            own: dict[float, Row] = {}
            for row in rows:
                if row["scheme"] == scheme:
                    own.setdefault(float(row["δ"] or 0), row)
            if compared in own:
                found.setdefault(scheme, [own[delta] for delta in sorted(own)])
    return {scheme: found[scheme] for scheme in COMPARED if scheme in found}


def plot(settings: list[tuple[str, list[Path]]], path: Path) -> None:
    """Draw the settings, each below the heading before it."""
    from rivals_plot import Panel, draw  # matplotlib is no need of the tables

    groups: dict[str, list[Panel]] = {}
    heading = ""
    for name, reports in settings:
        if reports:
            groups.setdefault(heading, []).append((name, strengths(reports)))
        else:
            heading = name
    draw(groups, COMPARED, path)


def read(path: Path) -> list[Row]:
    """Return the rows of a report."""
    try:
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        sys.exit(f"cannot read {path}: {error.strerror}")
    if not rows or "scheme" not in rows[0]:
        sys.exit(f"{path} is no report: give a .csv of `dllmark reproduce rivals`")
    return rows


def print_table(names: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for row in (names, ["---"] * len(names), *rows):
        print("| " + " | ".join(row) + " |")


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path, nargs="*")
    parser.add_argument("--setting", nargs="+", action="append", default=[])
    parser.add_argument("--plot", type=Path, help="the PNG to draw the settings in")
    given = parser.parse_args()
    if given.setting:
        settings = [(name, list(map(Path, paths))) for name, *paths in given.setting]
        print_table(["", *COMPARED], [line(*setting) for setting in settings])
        if given.plot:
            plot(settings, given.plot)
        return
    if given.plot:
        parser.error("--plot draws settings: give them with --setting")
    if not given.reports:
        parser.error("give the reports to print")
    names = ["scheme", "δ", "mean z", *SHARES.values(), "perplexity by SmolLM2", "change, %",
             "by Qwen", "change, %", "degenerate, %", "distinct-2"]  # fmt: skip
    shown: dict[tuple[str, str], list[str]] = {}
    for path in given.reports:
        for row in read(path):
            shown.setdefault((row["scheme"], row["δ"]), cells(row))
    print_table(names, list(shown.values()))


if __name__ == "__main__":
    main()
