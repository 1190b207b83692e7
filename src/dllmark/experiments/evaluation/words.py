"""The conclusion of a report in words that somebody may quote, made from its numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dllmark.detection.words import percent
from dllmark.experiments.evaluation.attacks import OFFLINE, Withstood
from dllmark.experiments.evaluation.cost import Cost
from dllmark.experiments.evaluation.measures import (
    LENGTHS,
    OWN,
    Detections,
    FalsePositives,
    Rate,
    RateAt,
)

RELIABLE, ASSURED = 0.95, 0.90
"""A mark detects reliably where it finds the first share of the texts, and by the interval no less
than the second; it does not where the interval lies below the first."""

UNLIKELY = 0.05
"""What has a smaller chance is not put down to chance."""

Reliability = Literal["reliable", "too few texts", "not reliable"]
FalseAlarms = Literal[
    "as stated", "too few texts", "more than stated", "one family more than stated"
]


@dataclass(frozen=True)
class Verdict:
    """What the numbers say, for a program and for a reader."""

    reliability: Reliability
    false_alarms: FalseAlarms
    text: str


def conclude(
    key_id: str,
    chosen: float,
    nulls: FalsePositives,
    found: Detections,
    cost: Cost,
    attacks: list[Withstood],
) -> Verdict:
    """Return the verdict on a mark."""
    reliability, alarms = reliability_of(found), alarms_of(nulls, chosen)
    sentences = [
        _on_detection(reliability, key_id, chosen, found),
        _on_alarms(alarms, chosen, nulls),
        *_on_cost(cost),
        *(_on_attacks(attacks) if reliability != "not reliable" else []),
        "This holds for the model, the settings and the kinds of text named below, and for no "
        "others; a text without the mark may still be a machine's, and a marked one may have "
        "been edited by people.",
    ]
    return Verdict(reliability, alarms, " ".join(sentences))


def reliability_of(found: Detections) -> Reliability:
    """Return whether a mark detects reliably from some length on, as far as the texts can show."""
    if reliable_from(found) is not None:
        return "reliable"
    return "not reliable" if _longest(found).found.high < RELIABLE else "too few texts"


def reliable_from(found: Detections) -> int | None:
    """Return the first length at which enough is found, there and beyond, and surely not less."""
    start = found.needed[0].tokens
    lengths = (
        point.tokens
        for point in found.curve
        if start and point.tokens and point.tokens >= start and point.found.low >= ASSURED
    )
    return next(lengths, None)


def alarms_of(nulls: FalsePositives, chosen: float) -> FalseAlarms:
    """Return whether unmarked texts were taken for marked ones more often than stated.

    With fewer than three texts for each that the rate allows, not even no hit at all shows it.
    """
    rate = rate_of(nulls.rates, None, chosen)
    if rate.low > chosen:
        return "more than stated"
    if nulls.worst_by_chance < UNLIKELY:
        return "one family more than stated"
    return "too few texts" if rate.count < texts_for(chosen) else "as stated"


def texts_for(nominal: float) -> int:
    """Return how many texts without a hit show that a rate is kept, by the rule of three.

    >>> texts_for(0.01)
    300
    """
    return round(3 / nominal)


def rate_of(rates: tuple[RateAt, ...], tokens: int | None, nominal: float) -> Rate:
    """Return the rate at a length and a nominal rate."""
    return next(r.found for r in rates if (r.tokens, r.nominal) == (tokens, nominal))


def of(rate: Rate) -> str:
    """Return a rate with its counts and interval.

    >>> of(Rate.of(12, 12))
    '12 of 12 (100 %; 95 % interval 73.5 % to 100 %)'
    """
    interval = f"95 % interval {percent(rate.low)} to {percent(rate.high)}"
    return f"{rate.hits:,} of {rate.count:,} ({percent(rate.share)}; {interval})"


def can_be_said(nominal: float, rate: Rate) -> str:
    """Return what so many texts can say about a rate; too few say at most the rule of three.

    >>> can_be_said(0.0001, Rate.of(0, 300))
    'too few texts: no hit in 300 shows a rate below 1 % (rule of three); 0.01 % takes 30,000'
    """
    enough = texts_for(nominal)
    if rate.hits == 0 and rate.count < enough:
        below = percent(min(1.0, 3 / rate.count))
        return (
            f"too few texts: no hit in {rate.count:,} shows a rate below {below} (rule of three); "
            f"{percent(nominal)} takes {enough:,}"
        )
    if rate.low > nominal:
        return "more than stated"
    return "fewer than stated" if rate.high < nominal else "consistent with what is stated"


def _on_detection(reliability: Reliability, key_id: str, chosen: float, found: Detections) -> str:
    mark = f"At a false-positive rate of {percent(chosen)}, the mark of key {key_id}"
    at = _longest(found)
    seen = f"of texts cut to {at.tokens} tokens it found {of(at.found)}"
    if reliability == "not reliable":
        return f"{mark} does not detect reliably: {seen}."
    if reliability == "too few texts":
        return f"{mark} may or may not detect reliably, the texts are too few to show it: {seen}."
    return f"{mark} detects reliably in texts of {reliable_from(found)} tokens or more: {seen}."


def _longest(found: Detections) -> RateAt:
    """Return the longest point of the curve that at least half of the texts reach."""
    return next(
        (one for one in reversed(found.curve) if 2 * one.found.count >= found.texts),
        found.curve[0],
    )


def _on_alarms(alarms: FalseAlarms, chosen: float, nulls: FalsePositives) -> str:
    seen = of(rate_of(nulls.rates, None, chosen))
    if alarms == "more than stated":
        return f"It accuses too often: {seen} unmarked texts were taken for marked ones."
    sentence = f"Of the unmarked texts it took {seen} for marked ones"
    if alarms == "as stated":
        return f"{sentence}, no more than stated as far as so many texts can show."
    if alarms == "too few texts":
        return f"{sentence}; to show the stated rate takes {texts_for(chosen):,} such texts."
    worst = nulls.families[0]
    return f"{sentence}, but of the family “{worst.family}” {of(worst.found)}, more than stated."


def _on_cost(cost: Cost) -> list[str]:
    sentences = []
    if cost.perplexity:
        one, within = cost.perplexity, ""
        if one.low is not None and one.high is not None:
            within = f" (95 % interval {one.low:.2f} to {one.high:.2f})"
        sentences.append(
            f"The median text of the same prompt had {one.change:.2f} times the perplexity with "
            f"the mark{within}."
        )
    if cost.degenerate_marked and cost.degenerate_unmarked:
        sentences.append(
            f"Degenerate, repeating more than a fifth of their 4-grams, were "
            f"{cost.degenerate_marked.hits:,} of {cost.degenerate_marked.count:,} marked texts and "
            f"{cost.degenerate_unmarked.hits:,} of {cost.degenerate_unmarked.count:,} unmarked "
            "ones."
        )
    return sentences or ["What the mark costs was not measured."]


def _on_attacks(attacks: list[Withstood]) -> list[str]:
    """Return the worst of the attacks that were tried, as a warning."""
    if not attacks:
        return []
    worst = min(attacks, key=lambda one: one.best.share)
    return [
        f"Of {len(attacks)} attacks the worst ({worst.name}) left {percent(worst.best.share)} of "
        "the texts detectable."
    ]


def not_tested(
    nulls: FalsePositives,
    found: Detections,
    cost: Cost,
    attacks: Sequence[Withstood],
    from_files: bool,
) -> list[str]:
    """Return in words what a reader might think was tested, and was not."""
    lines = [
        f"Marked texts of {length} tokens: the longest has {found.longest}."
        for length in LENGTHS
        if length > found.longest
    ]
    lines += [
        f"A false-positive rate of {percent(one.nominal)}: {can_be_said(one.nominal, one.found)}."
        for one in nulls.rates
        if one.tokens is None and one.found.hits == 0 and one.found.count < texts_for(one.nominal)
    ]
    if len([one for one in nulls.families if one.family != OWN]) == 1:
        lines.append("Other families of unmarked texts: all nulls are of one family.")
    lines += cost.why_not
    if not any(one.attack not in OFFLINE for one in attacks):
        lines.append("Paraphrase, translation and any other rewriting by a model (--attacked).")
    lines += [
        "Removal and forgery by somebody who has collected marked texts, or can ask the detector.",
        "Whether the texts are right or useful: perplexity and repetition are what was measured.",
        "Other keys, payloads, strategies, strengths, temperatures and models than those named.",
        "Several keys at a time: each more makes a false alarm likelier, and is corrected for.",
    ]
    if from_files:
        lines.append("How the given texts were written: the report takes the files at their word.")
    return lines
