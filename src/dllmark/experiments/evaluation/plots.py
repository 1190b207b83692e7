"""Plots as inline SVG: nothing is loaded, and a screen reader is told what they show.

Colours come from the page's style, by class, so that they follow its light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dllmark.detection.words import percent
from dllmark.experiments.evaluation.attacks import Withstood
from dllmark.experiments.evaluation.measures import Rate, RateAt

WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 14, 48
ROW = 24
LABELS = 150
LEAST = 1e-5
"""The lowest rate that the plot of false positives shows."""


@dataclass(frozen=True)
class Point:
    """A point of a line with the ends of its interval, in units of the axes from 0 to 1."""

    x: float
    y: float
    low: float
    high: float


def detection_plot(curve: Sequence[RateAt], share: float) -> str:
    """Draw how much is found by length, with its interval and the share that is called reliable."""
    longest = max(one.tokens or 0 for one in curve)
    points = [
        Point((one.tokens or 0) / longest, one.found.share, one.found.low, one.found.high)
        for one in curve
    ]
    ticks_x = [(tokens / longest, str(tokens)) for tokens in _round_steps(longest)]
    ticks_y = [(tenth / 4, f"{25 * tenth} %") for tenth in range(5)]
    y = _y(share)
    body = [
        _axes(ticks_x, ticks_y, "tokens", "marked texts found"),
        f'<line class="stated" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
        _band(points),
        _line(points),
    ]
    last = curve[-1]
    found = f"From {curve[0].tokens} tokens, {percent(curve[0].found.share)}, to {last.tokens}"
    description = f"{found} tokens, {percent(last.found.share)}; the band is the 95 % interval."
    return _svg("detection", "Marked texts found, by length", description, body)


def alarms_plot(curve: Sequence[RateAt]) -> str:
    """Draw observed against stated false positives, both by powers of ten."""
    scale = -math.log10(LEAST)

    def place(rate: float) -> float:
        return 1 + math.log10(max(rate, LEAST)) / scale

    powers = [10.0**-power for power in range(int(scale), -1, -1)]
    ticks = [(place(rate), percent(rate)) for rate in powers]
    points = [
        Point(place(one.nominal), place(one.found.share), place(one.found.low),
              place(one.found.high))
        for one in curve
    ]  # fmt: skip
    bars = [
        f'<line class="bar" x1="{_x(one.x):.1f}" x2="{_x(one.x):.1f}" '
        f'y1="{_y(one.low):.1f}" y2="{_y(one.high):.1f}"/>'
        for one in points
    ]
    dots = [
        f'<circle class="dot" cx="{_x(at.x):.1f}" cy="{_y(at.y):.1f}" r="4"/>'
        for at, one in zip(points, curve, strict=True)
        if one.found.hits
    ]
    diagonal = f'x1="{_x(0):.1f}" y1="{_y(0):.1f}" x2="{_x(1):.1f}" y2="{_y(1):.1f}"'
    body = [
        _axes(ticks, ticks, "stated rate", "observed rate"),
        f'<line class="stated" {diagonal}/>',
        *bars,
        *dots,
    ]
    each = "; ".join(f"{percent(one.found.share)} at {percent(one.nominal)}" for one in curve)
    title = "False positives observed against stated"
    return _svg("alarms", title, f"Observed {each}. The dashed line is as stated.", body)


def attacks_plot(rows: Sequence[Withstood]) -> str:
    """Draw what is found after each attack, a bar each with its interval."""
    height = ROW * len(rows) + TOP + BOTTOM
    width = WIDTH - LABELS - RIGHT
    body = []
    for tenth in range(0, 5):
        x = LABELS + width * tenth / 4
        body.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        body.append(_text(x, height - BOTTOM + 18, f"{25 * tenth} %", "middle"))
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        body.append(_text(LABELS - 8, y + 16, _shortened(row.name), "end"))
        body += _bar(row.found, y + 4, width, "found")
        if row.normalized:
            body += _bar(row.normalized, y + 13, width, "normalized")
    body.append(_text(LABELS + width / 2, height - 8, "marked texts found", "middle"))
    each = "; ".join(f"{row.name}: {percent(row.found.share)}" for row in rows)
    return _svg("attacks", "Marked texts found after each attack", f"{each}.", body, height)


def _shortened(name: str, most: int = 24) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _bar(rate: Rate, y: float, width: float, name: str) -> list[str]:
    low, high = (LABELS + width * end for end in (rate.low, rate.high))
    middle = y + 3.5
    return [
        f'<rect class="{name}" x="{LABELS}" y="{y}" width="{width * rate.share:.1f}" height="7"/>',
        f'<line class="bar" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
    ]


def _svg(name: str, title: str, description: str, body: Sequence[str], height: int = HEIGHT) -> str:
    """Return a drawing with a name and a description for those who cannot see it."""
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {height}" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title>'
        f'<desc id="{name}-d">{escape(description)}</desc>{"".join(body)}</svg>'
    )


def _axes(
    ticks_x: Sequence[tuple[float, str]], ticks_y: Sequence[tuple[float, str]], x: str, y: str
) -> str:
    parts = []
    for at, label in ticks_y:
        line = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(at):.1f}" y2="{_y(at):.1f}"'
        parts.append(f'<line class="grid" {line}/>')
        parts.append(_text(LEFT - 6, _y(at) + 4, label, "end"))
    parts += [_text(_x(at), HEIGHT - BOTTOM + 18, label, "middle") for at, label in ticks_x]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="13" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 13 {middle})">{escape(y)}</text>'
    )
    return "".join(parts)


def _round_steps(longest: int) -> list[int]:
    """Return round numbers up to one, at most seven of them."""
    step = next(
        one for one in (10, 20, 50, 100, 200, 500, 1000, 10**4, 10**5) if longest <= 7 * one
    )
    return list(range(0, longest + 1, step))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _band(points: Sequence[Point]) -> str:
    upper = [f"{_x(one.x):.1f},{_y(one.high):.1f}" for one in points]
    lower = [f"{_x(one.x):.1f},{_y(one.low):.1f}" for one in reversed(points)]
    return f'<polygon class="band" points="{" ".join(upper + lower)}"/>'


def _line(points: Sequence[Point]) -> str:
    places = " ".join(f"{_x(one.x):.1f},{_y(one.y):.1f}" for one in points)
    return f'<polyline class="line" points="{places}"/>'


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
