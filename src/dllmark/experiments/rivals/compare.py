"""`dllmark reproduce rivals`: every scheme with the same model, prompts, sampler, keys and seeds.

One thing is varied at a time: the temperature, the tokens a step, the order, and at the end the
strength of every scheme. Each marked text has a partner: the unmarked one of the same prompt,
sampler and seed. Every key has its own seed, so that no scheme is measured against one lucky draw.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from dllmark.errors import InputError
from dllmark.experiments.lab import Floats, Lab
from dllmark.experiments.report import Curve, Report, Row
from dllmark.experiments.rivals.measures import (
    Detected,
    Quality,
    change_cells,
    detected,
    quality,
    rate_cells,
)
from dllmark.experiments.rivals.schemes import SCHEMES, MakeScorer, Scheme, find_scheme
from dllmark.experiments.rivals.scores import Scorer
from dllmark.experiments.runs import step_seconds
from dllmark.experiments.settings import Dataset, Setting
from dllmark.experiments.specs import start_report

ORDERS = ("low_confidence", "random", "entropy")
"""LLaDA's two, and Dream's."""

TEMPERATURE = 0.8
TEMPERATURES = (0.8, 0.0, 0.5, 1.0)
PER_STEP = (1, 2, 4)
STRENGTHS = (0.5, 1.0, 1.5)
"""Of a scheme's own δ."""

RATES = (0.01, 0.001, 0.0001)
PLOTTED = 0.001
LENGTHS = (50, 100, 150, 200, 300, 400)
LENGTHS_REPORT, STRENGTHS_REPORT = "lengths", "strengths"

TPR = "TPR at {:g} %"
FOUND = ("unmarked at 1 %", "mean z", "scored")
MATCHED_TPR = f"{TPR.format(100 * PLOTTED)}, loops missed"
MATCHED_Z = "mean z, no loops"
MATCHED_PPL = "PPL change %, no loops"


Nulls = dict[tuple[MakeScorer, float, str], Detected]
"""What is found in unmarked texts, by the score, γ and the order."""


@dataclass(frozen=True)
class Way:
    """How a sampler writes."""

    temperature: float
    per_step: int
    order: str

    @property
    def name(self) -> str:
        """What it is called in reports."""
        order = self.order.replace("_", " ")
        return f"temperature {self.temperature:g}, {self.per_step} a step, {order} order"

    @property
    def slug(self) -> str:
        """What its reports are called."""
        return f"t{self.temperature:g}-p{self.per_step}-{self.order}"

    def unmarked(self, order: str, keys: int) -> list[Setting]:
        """Return how the unmarked partners of all keys' texts are written, each draw once."""
        partners = (
            Setting(None, temperature=self.temperature, per_step=self.per_step,
                    order=order or self.order, key=number).unmarked
            for number in range(keys)
        )  # fmt: skip
        return list(dict.fromkeys(partners))

    def marked(self, scheme: Scheme, strength: float, keys: int) -> list[Setting]:
        """Return how a scheme's texts are written, key by key."""
        order = scheme.order or self.order
        return [
            Setting(scheme.name, scheme.gamma, strength * scheme.delta, self.temperature,
                    self.per_step, order, number)
            for number in range(keys)
        ]  # fmt: skip


def ways(order: str, quick: bool) -> list[Way]:
    """Return the settings of a sampler that are compared, the most important first.

    >>> [way.slug for way in ways("entropy", quick=True)]
    ['t0.8-p1-entropy']
    """
    if order not in ORDERS:
        raise InputError(f"no order {order!r} to compare in: choose one of {', '.join(ORDERS)}")
    first = Way(TEMPERATURE, 1, order)
    if quick:
        return [first]
    others = [Way(temperature, 1, order) for temperature in TEMPERATURES]
    others += [Way(TEMPERATURE, per_step, order) for per_step in PER_STEP]
    others += [Way(TEMPERATURE, 1, other) for other in ORDERS]
    return list(dict.fromkeys([first, *others]))


def rivals(
    lab: Lab,
    keys: int,
    order: str,
    quick: bool,
    names: Collection[str] = (),
    only: Collection[str] = (),
    strengths: Collection[float] = STRENGTHS,
) -> Iterator[tuple[str, Report]]:
    """Yield a report for each setting of the sampler, and ones of detection by length and by δ.

    With `quick` there is one setting, and no report by δ; with `only`, the reports of these names
    alone. Each comes as soon as its texts are written, so that a run that is cut off has whole
    reports. Without `names`, all schemes are compared. The `strengths` are shares of their own δ.
    """
    if keys < 1:
        raise InputError(f"at least 1 key is needed; got {keys}")
    schemes = [find_scheme(name) for name in dict.fromkeys(names)] or list(SCHEMES.values())
    first, *others = ways(order, quick)
    wanted = wanted_reports(order, quick, only)
    if first.slug in wanted:
        yield f"rivals-{first.slug}", _compare(lab, first, _entries(schemes, first), keys)
    if LENGTHS_REPORT in wanted:
        lengths = _lengths(lab, schemes, first, keys)
        if lengths.rows:  # else no text reaches one
            yield f"rivals-{LENGTHS_REPORT}", lengths
    for way in others:
        if way.slug in wanted:
            yield f"rivals-{way.slug}", _compare(lab, way, _entries(schemes, way), keys)
    for name, way in _varied(first, *others).items():
        if name in wanted:
            varied = _compare(lab, way, _entries(schemes, way, strengths), keys)
            varied.title += ", over δ"
            yield f"rivals-{name}", varied


def wanted_reports(order: str, quick: bool, only: Collection[str]) -> list[str]:
    """Return what the reports are called, less `rivals-`, as they come; of some, those alone.

    >>> wanted_reports("low_confidence", quick=True, only=[])
    ['t0.8-p1-low_confidence', 'lengths']
    """
    first, *others = ways(order, quick)
    names = [first.slug, LENGTHS_REPORT, *(way.slug for way in others)]
    varied = [] if quick else list(_varied(first, *others))
    if unknown := set(only) - {*names, *varied}:
        raise InputError(f"no report {min(unknown)!r}: choose among {', '.join([*names, *varied])}")
    return [name for name in [*names, *varied] if name in only] or [*names, *varied[:1]]


def _varied(first: Way, *others: Way) -> dict[str, Way]:
    """Return the reports over δ, of which without a choice only the first is made."""
    named = {f"{STRENGTHS_REPORT}-{way.slug}": way for way in others}
    return {STRENGTHS_REPORT: first, **named}


def _entries(
    schemes: list[Scheme], way: Way, strengths: Collection[float] = (1.0,)
) -> list[tuple[Scheme, float]]:
    """Return the schemes that can be written in a way, each with its strengths."""
    return [
        (scheme, strength)
        for scheme in schemes
        if (way.temperature or not scheme.noise)
        and (not scheme.orders or way.order in scheme.orders)
        for strength in (strengths if scheme.delta else (1.0,))
    ]


def _compare(lab: Lab, way: Way, entries: list[tuple[Scheme, float]], keys: int) -> Report:
    """Return the table of one way, and its plot: detection against quality, loops counted out."""
    settings = [setting for scheme, strength in entries
                for setting in way.marked(scheme, strength, keys)]  # fmt: skip
    title = f"Rivals: {way.name}"
    report = start_report(lab, title, settings, (MATCHED_PPL, ""), any_length=True)
    del report.about["most_repeats"]
    report.about |= {"keys": keys, "judges": ", ".join(lab.judges) or "none"}
    for dataset in lab.datasets:
        unmarked = {}
        for order in dict.fromkeys([way.order, *(scheme.order for scheme, _ in entries)]):
            plain = way.unmarked(order, keys)
            unmarked[plain[0].order] = quality(lab, dataset, plain)
        for name, found in unmarked.items():
            label = "unmarked" if name == way.order else f"unmarked, {name.replace('_', ' ')}"
            row: Row = {"prompts": dataset.name, "scheme": label, "score": None, "γ": None,
                        "δ": None, "texts": found.tokens.size}  # fmt: skip
            row |= dict.fromkeys([*(TPR.format(100 * rate) for rate in RATES), *FOUND])
            report.add(
                row | _quality_cells(found, None) | _cost(lab, dataset, way.unmarked(name, keys))
            )
        points: dict[str, list[Row]] = {}
        nulls: Nulls = {}
        for scheme, strength in entries:
            partner = unmarked[scheme.order or way.order]
            settings = way.marked(scheme, strength, keys)
            for row in _rows(lab, dataset, scheme, settings, partner, nulls):
                report.add(row)
                if row["score"] == next(iter(scheme.scores)):
                    points.setdefault(scheme.name, []).append(row)
        report.curves += _curves(dataset.name, points)
    return report


def _curves(panel: str, points: dict[str, list[Row]]) -> Iterator[Curve]:
    """Yield detection against quality for each scheme, from its weakest to its strongest."""
    for y in (MATCHED_TPR, MATCHED_Z):
        for name, rows in points.items():
            known = [row for row in rows if MATCHED_PPL in row and y in row]
            known.sort(key=lambda row: float(row["δ"] or 0.0))
            yield Curve(panel, name, [(row[MATCHED_PPL], row[y]) for row in known], y)


def _rows(
    lab: Lab,
    dataset: Dataset,
    scheme: Scheme,
    settings: list[Setting],
    partner: Quality,
    nulls: Nulls,
) -> Iterator[Row]:
    """Yield what was measured of a scheme's texts, a row a score.

    What schemes that score alike find in unmarked texts is kept in `nulls`.
    """
    found = quality(lab, dataset, settings)
    written = [lab.texts(dataset, setting) for setting in settings]
    plain = [lab.texts(dataset, setting.unmarked) for setting in settings]
    for name, make in scheme.scores.items():
        scorers = _scorers(lab, scheme, name, len(settings))
        marked = detected(scorers, written, lab.protocol.scored)
        alike = (make, scheme.gamma, settings[0].order)
        if alike not in nulls:
            nulls[alike] = detected(scorers, plain, lab.protocol.scored)
        row: Row = {"prompts": dataset.name, "scheme": scheme.name, "score": name,
                    "γ": scheme.gamma, "δ": settings[0].delta if scheme.delta else None,
                    "texts": marked.z.size}  # fmt: skip
        for rate in RATES:
            row |= rate_cells(TPR.format(100 * rate), _hits(marked.p_value, rate))
        row |= rate_cells(FOUND[0], _hits(nulls[alike].p_value, RATES[0]))
        row |= {FOUND[1]: float(marked.z.mean()), FOUND[2]: round(float(marked.count.mean()), 1)}
        row |= _quality_cells(found, partner) | _cost(lab, dataset, settings)
        yield row | _matched_cells(lab, marked, found, partner)


def _scorers(lab: Lab, scheme: Scheme, name: str, keys: int) -> list[Scorer]:
    """Return what scores a scheme's texts, for each key."""
    return [scheme.scores[name](lab.key(scheme.gamma, number), lab.tokenizer)
            for number in range(keys)]  # fmt: skip


def _hits(p_value: Floats, rate: float) -> Floats:
    return (p_value <= rate).astype(np.float64)


def _quality_cells(found: Quality, partner: Quality | None) -> Row:
    """Return how good texts are, and how much worse than their partners."""
    row: Row = {}
    for number, (judge, perplexity) in enumerate(found.perplexity.items(), 1):
        known = perplexity[np.isfinite(perplexity)]
        row[f"PPL by judge {number}"] = float(np.median(known)) if known.size else None
        if partner:
            name = f"PPL change % by judge {number}"
            row |= change_cells(name, perplexity, partner.perplexity[judge])
    row |= {"repeated 4-grams %": round(100 * float(found.repeats.mean()), 2)}
    row |= rate_cells("degenerate %", found.degenerate.astype(np.float64))
    row |= {"doubled words %": round(100 * float(found.doubled.mean()), 3)}
    row |= {"distinct-2": round(found.distinct, 4), "tokens": round(float(found.tokens.mean()), 1)}
    for number, (judge, other) in enumerate(found.off_topic.items(), 1):
        own = found.perplexity[judge]
        likelier = np.where(np.isfinite(own + other), own < other, np.nan)
        row |= rate_cells(f"on topic % by judge {number}", likelier)
    return row


def _matched_cells(lab: Lab, marked: Detected, found: Quality, partner: Quality) -> Row:
    """Return detection and quality at matched degeneration.

    Prompts whose unmarked text loops are left out. A marked text that loops counts as missed, and
    takes no part in the perplexity and in z: a mark cannot win by looping.
    """
    left_out = np.broadcast_to(partner.degenerate, marked.z.shape)
    loops = found.degenerate
    hits = np.where(loops, 0.0, _hits(marked.p_value, PLOTTED))
    row = rate_cells(MATCHED_TPR, np.where(left_out, np.nan, hits))
    whole = ~(left_out | loops)
    if whole.any():
        row[MATCHED_Z] = float(marked.z[whole].mean())
    if lab.judges and whole.any():
        judge = lab.judges[0]
        perplexity = np.where(whole, found.perplexity[judge], np.nan)
        row |= change_cells(MATCHED_PPL, perplexity, partner.perplexity[judge])
    return row


def _cost(lab: Lab, dataset: Dataset, settings: list[Setting]) -> Row:
    """Return how long a step took, of a whole batch."""
    slugs = {setting.slug for setting in settings}
    notes = [note for note in lab.notes(settings)
             if note.setting in slugs and note.prompts == dataset.name]  # fmt: skip
    seconds = step_seconds(notes, lab.protocol.tokens // settings[0].per_step)
    return {"ms a step": round(1000 * seconds, 2)} if seconds else {}


def _lengths(lab: Lab, schemes: list[Scheme], way: Way, keys: int) -> Report:
    """Return how often the first tokens of texts are detected, by their number."""
    entries = _entries(schemes, way)
    settings = [setting for scheme, strength in entries
                for setting in way.marked(scheme, strength, keys)]  # fmt: skip
    axes = ("tokens", TPR.format(100 * PLOTTED))
    title = f"Rivals: detection against length, {way.name}"
    report = start_report(lab, title, settings, axes, any_length=True)
    for unused in ("most_repeats", "scored"):
        del report.about[unused]
    report.about["keys"] = keys
    for dataset in lab.datasets:
        for scheme, strength in entries:
            written = [lab.texts(dataset, setting)
                       for setting in way.marked(scheme, strength, keys)]  # fmt: skip
            name = next(iter(scheme.scores))
            scorers, points = _scorers(lab, scheme, name, keys), []
            for length in LENGTHS:
                long = np.array([[len(text["ids"]) >= length for text in texts]
                                 for texts in written])  # fmt: skip
                if not long.any():
                    break
                p_value = detected(scorers, written, length).p_value
                row: Row = {"prompts": dataset.name, "scheme": scheme.name, "tokens": length,
                            "texts": int(long.sum())}  # fmt: skip
                for rate in RATES:
                    hits = np.where(long, _hits(p_value, rate), np.nan)
                    row |= rate_cells(TPR.format(100 * rate), hits)
                report.add(row)
                points.append((float(length), row[axes[1]]))
            report.curves.append(Curve(dataset.name, scheme.name, points))
    return report
