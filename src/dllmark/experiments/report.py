"""The results of an experiment, as Markdown, CSV, JSON and, where there are curves, a plot."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dllmark.detection.stats import share_interval
from dllmark.experiments.settings import RATES
from dllmark.files import atomic_write, writing

Row = dict[str, Any]

COLOURS = 10
"""As many curves as there are colours have the same marker."""

MARKERS = "os^D"
MOST_INSIDE = 8
"""A legend of more curves stands beside the panel, so that it hides none of them."""


@dataclass(frozen=True)
class Curve:
    """One line of one panel of a plot; `y` is what it shows, if not what the report's axis says."""

    panel: str
    name: str
    points: list[tuple[float, float]]
    y: str = ""


@dataclass
class Report:
    """Rows that each hold what was measured under one setting, and curves drawn from them.

    `about` is what a reader must know to compare, `origin` where the numbers come from.

    >>> report = Report("A table", {"model": "embedded"})
    >>> report.add({"strategy": "kgw", "mean z": 2.0})
    >>> print(report.markdown().splitlines()[-1])
    | kgw | 2.00 |
    """

    title: str
    about: dict[str, Any]
    axes: tuple[str, str] = ("", "")
    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    origin: dict[str, str] = field(default_factory=dict)

    def add(self, row: Row, theirs: tuple[float, ...] | None = None, model: str = "") -> None:
        """Add a row, and to its right the paper's rates for it, named by the paper's model."""
        if theirs is not None:
            row = row | {
                f"{100 * rate:g} % FPR, {model}": value
                for rate, value in zip(RATES, theirs, strict=True)
            }
        self.rows.append(row)

    def markdown(self) -> str:
        """Return the title, what was run, and the rows as a table; an interval is in brackets."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        shown = [name for name in names if not name.endswith((", low", ", high"))]
        about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.about.items())
        lines = [f"# {self.title}", "", about, ""]
        if self.origin:
            lines += [*(f"- {name}: {value}" for name, value in self.origin.items()), ""]
        lines += [_line(shown), _line(["---"] * len(shown))]
        lines += [_line([_cell(row, name) for name in shown]) for row in self.rows]
        return "\n".join(lines) + "\n"

    def record(self) -> dict[str, Any]:
        """Return all of it as plain JSON values; what is not a number is null."""
        about = {**self.about, **self.origin}
        return {"about": _finite(about), "rows": _finite(self.rows)}

    def write(self, folder: Path, name: str) -> list[Path]:
        """Write all forms of the report into a folder, each when it is complete."""
        record = {"title": self.title, **self.record()}
        contents = {
            "md": self.markdown(),
            "csv": self._csv(),
            "json": json.dumps(record, indent=1, ensure_ascii=False) + "\n",
        }
        paths = [folder / f"{name}.{ending}" for ending in contents]
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path, content in zip(paths, contents.values(), strict=True):
                with atomic_write(path) as file:
                    file.write(content.encode())
            if curves := [curve for curve in self.curves if curve.points]:
                paths.append(folder / f"{name}.png")
                self._draw(curves, paths[-1])
        return paths

    def _csv(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def _draw(self, curves: list[Curve], path: Path) -> None:
        """Draw curves, a panel for each group of them."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        panels = list(dict.fromkeys((curve.panel, curve.y) for curve in curves))
        across = 4 if len(panels) % 4 == 0 else min(3, len(panels))
        down = math.ceil(len(panels) / across)
        figure, axes = pyplot.subplots(
            down, across, figsize=(4.5 * across, 3.5 * down), squeeze=False
        )
        for axis, panel in zip(axes.flat, panels, strict=False):
            inside = [curve for curve in curves if (curve.panel, curve.y) == panel]
            for number, curve in enumerate(inside):
                x, y = zip(*curve.points, strict=True)
                marker = MARKERS[number // COLOURS % len(MARKERS)]
                axis.plot(x, y, marker=marker, markersize=4, label=curve.name)
            axis.set(title=panel[0], xlabel=self.axes[0], ylabel=panel[1] or self.axes[1])
            beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
            axis.legend(fontsize=7, **(beside if len(inside) > MOST_INSIDE else {}))
        for axis in list(axes.flat)[len(panels) :]:
            axis.axis("off")
        figure.tight_layout()
        with atomic_write(path) as file:
            figure.savefig(file, format="png", dpi=150)
        pyplot.close(figure)


def rate_cells(name: str, hits: int, count: int) -> Row:
    """Return a share in per cent with its 95 % interval, as cells of a row.

    >>> rate_cells("TPR", 50, 100)["TPR"]
    50.0
    """
    rate = share_interval(hits, count)
    return {
        name: 100 * rate.share,
        f"{name}, low": 100 * rate.low,
        f"{name}, high": 100 * rate.high,
    }


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        text = f"{value:.2f}" if "z" in name or "PPL" in name else f"{value:g}"
        if f"{name}, low" in row:
            digits = 1 if abs(value) >= 10 else 3 if abs(value) < 1 else 2
            low, high = (f"{row[f'{name}, {end}']:.{digits}f}" for end in ("low", "high"))
            text = f"{value:.{digits}f} ({low}–{high})"
        return text
    return " ".join(str(value).replace("|", "\\|").split())


def _finite(value: Any) -> Any:
    """Return plain JSON values: what is not a number is null."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
