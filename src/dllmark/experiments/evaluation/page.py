"""The page of a report: one file of HTML that loads nothing, runs nothing, and prints well."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dllmark.detection.words import percent
from dllmark.experiments.evaluation.cost import Compared, Cost
from dllmark.experiments.evaluation.measures import (
    LENGTHS,
    SHORTEST,
    Needed,
    Rate,
    RateAt,
    rates_with,
)
from dllmark.experiments.evaluation.plots import alarms_plot, attacks_plot, detection_plot
from dllmark.experiments.evaluation.record import Evaluation
from dllmark.experiments.evaluation.words import RELIABLE, can_be_said, rate_of

STYLE = Path(__file__).parent / "page.css"

RATE_HEAD = ["texts", "hits", "share", "95 % interval"]

MOST_FAMILIES_SHOWN = 12

LONGEST_FIGURE = 40
"""Characters of a cell that is not wrapped: figures are shorter, sentences and hashes longer."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The browser keeps to it: the page fetches nothing and runs no script."""


def page(report: Evaluation) -> str:
    """Return the whole page."""
    title = f"The mark of key {report.settings['key']}: what it detects, costs and withstands"
    sections = (_verdict, _alarms, _detection, _cost, _robustness, _not_tested, _origin)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n"
        f"</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n{_subtitle(report)}"
        + "\n".join(section(report) for section in sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def _subtitle(report: Evaluation) -> str:
    made = f"Made by dllmark {report.made['dllmark']}, {report.made['date']}."
    return f'<p class="quiet">{escape(made)}</p>\n'


def _verdict(report: Evaluation) -> str:
    verdict = (report.verdict.reliability, report.verdict.false_alarms)
    bad = verdict[0] == "not reliable" or verdict[1].endswith("more than stated")
    name = "bad" if bad else "good" if verdict == ("reliable", "as stated") else "open"
    return (
        f'<section id="verdict" class="{name}"><h2>Verdict</h2>'
        f"<p>{escape(report.verdict.text)}</p></section>"
    )


def _alarms(report: Evaluation) -> str:
    nulls, rate = report.false_positives, percent(report.rate)
    whole = [one for one in nulls.rates if one.tokens is None]
    short = ""
    if nulls.left_out_short:
        short = f" {nulls.left_out_short:,} of fewer than {SHORTEST} tokens were left out."
    families = [
        [escape(one.family), *_cells(one.found)] for one in nulls.families[:MOST_FAMILIES_SHOWN]
    ]
    left_out = len(nulls.families) - len(families)
    more = f" The {left_out} others are in the JSON." if left_out else ""
    return "".join([
        '<section id="false-positives"><h2>False positives</h2>',
        f"<p>{nulls.texts:,} texts without the mark, each scored whole.{short} An interval is the "
        "exact one (Clopper-Pearson), 95 %.</p>",
        _figure(
            alarms_plot(nulls.curve),
            "Observed against stated rates. A line is the 95 % interval; where no text was taken "
            "for marked there is no dot. Above the dashed line is too many.",
        ),
        _table(
            "Unmarked texts taken for marked ones",
            ["stated rate", *RATE_HEAD, "what so many texts can say"],
            [[percent(one.nominal), *_cells(one.found), can_be_said(one.nominal, one.found)]
             for one in whole],
        ),
        _table(
            "By length: texts cut to their first tokens",
            ["tokens", "texts", *(f"at {percent(one)}" for one in rates_with(report.rate))],
            _by_length(nulls.rates, report.rate),
        ),
        _table(
            f"By family of texts at {rate}, the worst first", ["family", *RATE_HEAD], families
        ),
        f'<p class="quiet">The worst is the family whose hits chance explains least; that one of '
        f"{len(nulls.families)} stands out as much by chance has a probability of "
        f"{nulls.worst_by_chance:.2g}.{more}</p></section>",
    ])  # fmt: skip


def _detection(report: Evaluation) -> str:
    found, rate = report.detection, percent(report.rate)
    widest = max(found.curve, key=lambda one: one.found.high - one.found.low).found
    return "".join([
        '<section id="detection"><h2>Detection</h2>',
        f"<p>{found.texts:,} marked texts, of {found.median_tokens:g} tokens in the median and "
        f"{found.longest} at most, cut to their first tokens. With {found.texts:,} texts an "
        f"interval is up to {100 * (widest.high - widest.low):.0f} percentage points wide.</p>",
        _figure(
            detection_plot(found.curve, RELIABLE),
            f"Share of the marked texts found at a false-positive rate of {rate}, by length. The "
            f"band is the 95 % interval, the dashed line {percent(RELIABLE)}.",
        ),
        _table(
            "Power: marked texts found, by length and false-positive rate",
            ["tokens", "texts", *(f"at {percent(one)}" for one in rates_with(report.rate))],
            _by_length(found.power, report.rate),
        ),
        _table(
            f"Length needed at {rate}",
            ["marked texts found", "observed from", "assured from (lower end of the interval)"],
            [[percent(one.share), *_lengths(one, found.longest)] for one in found.needed],
        ),
        _strengths(report),
        "</section>",
    ])  # fmt: skip


def _strengths(report: Evaluation) -> str:
    found = report.detection
    rows = [[word, f"{count:,}"] for word, count in found.strengths.items()]
    return (
        _table("Evidence in the whole marked texts, in the words of dllmark detect",
               ["evidence", "texts"], rows)
        + f"<p>Of their pairs, {percent(found.green_share)} are green, where "
        f"{percent(report.settings['γ'])} are without a mark.</p>"
    )  # fmt: skip


def _cost(report: Evaluation) -> str:
    cost = report.cost
    rows = [
        _compared(f"perplexity, judged by {cost.judge}", cost.perplexity, "times", 1),
        _compared("repeated bigrams", cost.repeated_2, "points", 100),
        _compared("repeated 4-grams", cost.repeated_4, "points", 100),
    ]
    parts = ['<section id="cost"><h2>Cost</h2>']
    if shown := [row for row in rows if row]:
        parts.append(_table(
            f"{cost.pairs:,} pairs of texts of the same prompts, medians",
            ["", "unmarked", "marked", "median change", "95 % interval", "pairs"], shown,
        ))  # fmt: skip
    if cost.degenerate_unmarked and cost.degenerate_marked:
        parts.append(_table(
            "Degenerate texts: more than 20 % of their 4-grams repeated",
            ["", *RATE_HEAD],
            [["unmarked", *_cells(cost.degenerate_unmarked)],
             ["marked", *_cells(cost.degenerate_marked)]],
        ))  # fmt: skip
    return "".join([*parts, _step(cost), *(f"<p>{escape(one)}</p>" for one in cost.why_not),
                    "</section>"])  # fmt: skip


def _step(cost: Cost) -> str:
    if cost.step is None:
        return ""
    one = cost.step
    return (
        f"<p>A step of the sampler took {_seconds(one.unmarked)} without the mark and "
        f"{_seconds(one.marked)} with it, {one.marked / one.unmarked:.2f} times as long: means of "
        f"batches of up to {one.batch} texts, on {escape(one.hardware)}, which other work may have "
        "disturbed.</p>"
    )


def _robustness(report: Evaluation) -> str:
    rows = [
        [escape(one.attack), "–" if one.strength is None else percent(one.strength),
         *_cells(one.found),
         percent(one.normalized.share) if one.normalized else "–"]
        for one in report.robustness
    ]  # fmt: skip
    return "".join([
        '<section id="robustness"><h2>Robustness</h2>',
        f"<p>What is found of the whole marked texts at {percent(report.rate)} after an attack. "
        "The strength is the share of tokens, letters, words or spaces that are changed; for "
        "<code>truncate</code> the share that is cut off, for <code>paste</code> the share that "
        "the marked text has of a larger text of nulls.</p>",
        _figure(
            attacks_plot(report.robustness),
            "Share of the marked texts found after each attack, with its 95 % interval.",
            '<span class="key"></span>as it stands '
            '<span class="key other"></span>with <code>dllmark detect --normalize</code>',
        ),
        _table(
            "The same as numbers",
            ["attack", "strength", *RATE_HEAD, "with --normalize"],
            rows,
        ),
        "</section>",
    ])  # fmt: skip


def _not_tested(report: Evaluation) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in report.not_tested)
    return f'<section id="not-tested"><h2>What was not tested</h2><ul>{lines}</ul></section>'


def _origin(report: Evaluation) -> str:
    settings = [[escape(name), escape(str(value))] for name, value in report.settings.items()]
    files = [
        [escape(one.purpose), escape(one.name), "–" if one.rows is None else f"{one.rows:,}",
         f"<code>{one.sha256}</code>"]
        for one in report.inputs
    ]  # fmt: skip
    made = [[escape(name), f"<code>{escape(one)}</code>"] for name, one in report.made.items()]
    return "".join([
        '<section id="origin"><h2>How it was made</h2>',
        _table("Settings", ["setting", "value"], settings),
        _table("Inputs", ["for", "file", "rows", "SHA-256"], files),
        _table("Versions, hardware, dates", ["what", "which"], made),
        "</section>",
    ])  # fmt: skip


def _by_length(rates: Sequence[RateAt], chosen: float) -> list[list[str]]:
    rows = []
    for length in LENGTHS:
        measured = {one.nominal: one.found for one in rates if one.tokens == length}
        if not measured:
            rows.append([str(length), "0", *("not measured" for _ in rates_with(chosen))])
            continue
        cells = [_short(rate_of(tuple(rates), length, one)) for one in rates_with(chosen)]
        rows.append([str(length), f"{measured[chosen].count:,}", *cells])
    return rows


def _cells(rate: Rate) -> list[str]:
    return [f"{rate.count:,}", f"{rate.hits:,}", percent(rate.share), _interval(rate)]


def _short(rate: Rate) -> str:
    return f"{percent(rate.share)} ({_interval(rate)})"


def _interval(rate: Rate) -> str:
    low, high = (f"{100 * end:.{3 if end >= 0.1 else 2}g}" for end in (rate.low, rate.high))
    return f"{low}–{high} %"


def _lengths(one: Needed, longest: int) -> list[str]:
    return [
        f"not reached in {longest} tokens" if tokens is None else f"{tokens} tokens"
        for tokens in (one.tokens, one.assured)
    ]


def _compared(name: str, one: Compared | None, unit: str, scale: int) -> list[str]:
    if one is None:
        return []

    def shown(value: float) -> str:
        return f"{scale * value:.2f}"

    sign = "+" if scale == 100 and one.change >= 0 else ""
    within = "too few pairs"
    if one.low is not None and one.high is not None:
        within = f"{shown(one.low)} to {shown(one.high)}"
    medians = [
        shown(value) + (" %" if scale == 100 else "") for value in (one.unmarked, one.marked)
    ]
    change = f"{sign}{shown(one.change)} {unit}"
    return [escape(name), *medians, change, within, f"{one.pairs:,}"]


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.2f} ms"


def _figure(svg: str, caption: str, key: str = "") -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)} {key}</figcaption></figure>"


def _cell(content: str) -> str:
    name = ' class="words"' if len(content) > LONGEST_FIGURE else ""
    return f"<td{name}>{content}</td>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column names its rows; a narrow screen scrolls it by itself."""
    titles = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    lines = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(map(_cell, row[1:]))}</tr>' for row in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{titles}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )
