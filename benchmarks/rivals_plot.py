"""Draw a comparison: what each scheme finds against what it costs, a panel for each setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.lines import Line2D

FOUND = "TPR at 0.1 %, loops missed"
COST = "PPL change %, no loops"
JUDGED = "PPL change % by judge 1"

MARKERS = "oDs^v<>PhX"
ACROSS = 4
FOUND_TICKS = [0, 50, 80, 90, 95, 98, 99, 100]
COST_TICKS = [-20, 0, 10, 30, 100, 300]
NEAR = 20
"""Changes of so many percent and less are drawn in proportion, greater ones ever closer."""

Row = dict[str, str]
Panel = tuple[str, dict[str, list[Row]]]
"""A setting, its temperature first, and the rows of each scheme from weak marks to strong ones."""


def draw(groups: dict[str, list[Panel]], compared: dict[str, float], path: Path) -> None:
    """Draw the panels of every group below its heading, and the legend in the cell behind them."""
    styles: dict[str, Any]
    styles = {scheme: {"color": f"C{number}", "marker": MARKERS[number % len(MARKERS)]}
              for number, scheme in enumerate(compared)}  # fmt: skip
    cells: list[Panel | None] = []
    headings = {}
    for heading, panels in groups.items():
        cells += [None] * (-len(cells) % ACROSS)
        headings[len(cells)] = heading
        cells += panels
    down = len(cells) // ACROSS + 1
    width, height = 3 * ACROSS, 2.6 * down + 0.5
    figure, axes = pyplot.subplots(
        down, ACROSS, figsize=(width, height), sharex=True, sharey=True, squeeze=False
    )
    for axis in axes.flat:
        axis.axis("off")
    for place, panel in enumerate(cells):
        if panel:
            _panel(axes.flat[place], panel, compared, styles)
    for place, heading in headings.items():
        axes.flat[place].annotate(
            heading, (0, 1), (0, 24), xycoords="axes fraction", textcoords="offset points",
            fontsize=12, fontweight="bold",
        )  # fmt: skip
    shown = [Line2D([], [], label=scheme, markersize=8, linewidth=1, **style)
             for scheme, style in styles.items()]  # fmt: skip
    shown += [
        Line2D([], [], label="other δ", color="0.4", marker="o", markersize=4, fillstyle="none"),
        Line2D([], [], label="95 % interval", color="0.7"),
    ]
    axes.flat[len(cells)].legend(handles=shown, loc="center", fontsize=9, frameon=False)
    figure.supxlabel("change of perplexity by SmolLM2, %, where neither text loops", fontsize=11)
    figure.supylabel("% found at 0.1 %, where a loop is a miss", fontsize=11)
    figure.subplots_adjust(
        left=0.9 / width, right=1 - 0.15 / width, bottom=0.65 / height, top=1 - 0.65 / height,
        wspace=0.08, hspace=0.42,
    )  # fmt: skip
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _panel(axis: Any, panel: Panel, compared: dict[str, float], styles: dict[str, Any]) -> None:
    """Draw one setting: the strengths of a scheme are a line, the compared one is filled."""
    name, schemes = panel
    axis.axis("on")
    axis.set_title(f"temperature {name}", fontsize=10)
    axis.tick_params(labelsize=8, labelbottom=True)
    axis.set_yscale("function", functions=(_stretched, _unstretched))
    axis.set_ylim(-3, 100.3)
    axis.set_yticks(FOUND_TICKS, map(str, FOUND_TICKS))
    axis.set_xscale("asinh", linear_width=NEAR)
    labels = [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in COST_TICKS]
    axis.set_xticks(COST_TICKS, labels)
    axis.set_xticks([], minor=True)
    axis.grid(color="0.9", linewidth=0.7)
    axis.axvline(0, color="0.6", linewidth=1, zorder=1)
    axis.set_axisbelow(True)
    looped = []
    for scheme, rows in reversed(schemes.items()):
        drawn = [row for row in rows if row.get(COST)]
        axis.plot(
            [float(row[COST]) for row in drawn], [float(row[FOUND]) for row in drawn],
            **styles[scheme], markersize=4, fillstyle="none", linewidth=1, clip_on=False,
        )  # fmt: skip
        for row in rows:
            if float(row["δ"] or 0) == compared[scheme]:
                if row.get(COST):
                    _compared(axis, row, styles[scheme])
                elif row.get(JUDGED):
                    looped.append(scheme)
    if looped:
        text = "\n".join(["0 %, every text loops:", *reversed(looped)])
        axis.text(0.03, 0.95, text, transform=axis.transAxes, va="top", fontsize=7)


def _compared(axis: Any, row: Row, style: dict[str, str]) -> None:
    """Draw a scheme as it is compared, with its 95 % intervals."""
    x, y = float(row[COST]), float(row[FOUND])
    spans = [[[abs(float(row[f"{name}, {end}"]) - value)] for end in ("low", "high")]
             for name, value in ((COST, x), (FOUND, y))]  # fmt: skip
    axis.errorbar(x, y, xerr=spans[0], yerr=spans[1], color=style["color"], alpha=0.45,
                  linewidth=1, zorder=2)  # fmt: skip
    axis.plot(x, y, **style, markersize=8, markeredgecolor="white", clip_on=False, zorder=4)


def _stretched(found: Any) -> Any:
    """Return the height of a share in percent: half as many misses are a step up, however few.

    >>> [round(float(_stretched(found)), 1) for found in (0, 90, 99)]
    [-2.0, -1.0, -0.3]
    """
    return -np.log10(101 - np.minimum(found, 100.9))


def _unstretched(height: Any) -> Any:
    """Return the share of a height."""
    return 101 - 10 ** -np.asarray(height)
