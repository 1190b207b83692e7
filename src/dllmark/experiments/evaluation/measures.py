"""How often unmarked texts are taken for marked ones, and marked ones found, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dllmark.detection.detector import Detector, scored_text
from dllmark.detection.stats import binomial_tail, family_wise, share_interval
from dllmark.errors import InputError
from dllmark.experiments.nulls import NOMINAL
from dllmark.experiments.p_values import Floats, p_by_length
from dllmark.relation.tokenizer import Ids

LENGTHS = (50, 100, 200, 400)
"""The lengths in tokens that rates are stated for."""

SHARES = (0.95, 0.99)
"""Of the marked texts: how long must one be for so many to be found?"""

SHORTEST = 25
"""Tokens of a text that counts: a shorter one could hardly be taken for marked at a small rate."""

STEP = 10
"""Tokens between the points of the curve of detection."""

FEWEST = 5
"""Texts at a point of the curve; of fewer texts nothing can be said."""

DRAWN = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""The nominal rates of the curve of false positives."""

OWN = "unmarked texts of the model"
"""What the family of these is called."""

NOT_FOUND = "not found"
STRENGTHS = ("overwhelming", "clear", "weak", NOT_FOUND)
"""How strong the evidence in a marked text is."""

CHUNK = 500
"""Texts scored at a time, between two steps of a progress bar."""

OnDone = Callable[[int, int], None]


@dataclass(frozen=True)
class Rate:
    """So many of so many texts, and the exact 95 % interval of their share (Clopper-Pearson)."""

    hits: int
    count: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, count: int) -> Rate:
        """Return the rate of a count.

        >>> Rate.of(0, 100).share, Rate.of(0, 100).high < 0.04
        (0.0, True)
        """
        interval = share_interval(hits, count)
        return cls(hits, count, interval.share, interval.low, interval.high)

    @classmethod
    def at(cls, p_values: Floats, nominal: float) -> Rate:
        """Return how many p-values are at most a nominal rate."""
        return cls.of(int((p_values <= nominal).sum()), len(p_values))


@dataclass(frozen=True)
class RateAt:
    """What was found of texts cut to a length (None: of whole texts) at a nominal rate."""

    tokens: int | None
    nominal: float
    found: Rate


@dataclass(frozen=True)
class FamilyRate:
    """What was found of the whole texts of one family at the chosen rate."""

    family: str
    found: Rate


@dataclass(frozen=True)
class FalsePositives:
    """What happens to texts without a mark.

    `families` begins with the worst: the one whose hits chance explains least. `worst_by_chance` is
    the chance that one of so many families stands out as much if all keep the chosen rate.
    `curve` has the rates of whole texts at more nominal rates, to draw.
    """

    texts: int
    left_out_short: int
    rates: tuple[RateAt, ...]
    curve: tuple[RateAt, ...]
    families: tuple[FamilyRate, ...]
    worst_by_chance: float


@dataclass(frozen=True)
class Needed:
    """From how many tokens on a share of the marked texts is found, at the chosen rate.

    `tokens` goes by the share observed, `assured` by the lower end of its interval; None where no
    length that was measured is enough.
    """

    share: float
    tokens: int | None
    assured: int | None


@dataclass(frozen=True)
class Detections:
    """What is found of marked texts: `power` at stated lengths and rates, `curve` at the chosen.

    `strengths` counts whole texts by how strong the evidence in them is at the chosen rate, and
    `green_share` is the share of green pairs in all of them.
    """

    texts: int
    median_tokens: float
    longest: int
    strengths: dict[str, int]
    green_share: float
    power: tuple[RateAt, ...]
    curve: tuple[RateAt, ...]
    needed: tuple[Needed, ...]


def rates_with(chosen: float) -> tuple[float, ...]:
    """Return the nominal rates of a report: 5, 1, 0.1 and 0.01 %, and the chosen one.

    >>> rates_with(0.005)
    (0.05, 0.01, 0.005, 0.001, 0.0001)
    """
    return tuple(sorted({*NOMINAL, chosen}, reverse=True))


def false_positives(
    detector: Detector,
    families: Mapping[str, Sequence[str]],
    own: Sequence[str],
    on_done: OnDone = lambda done, total: None,
) -> FalsePositives:
    """Return how often texts without a mark are taken for marked ones.

    `own` are unmarked texts of the model: a family of their own, not part of the rates.
    """
    total, done, short = sum(map(len, families.values())), 0, 0
    cut: dict[int, list[Floats]] = {length: [] for length in LENGTHS}
    whole: dict[str, Floats] = {}
    for family, texts in families.items():
        parts = []
        for start in range(0, len(texts), CHUNK):
            encoded = _encoded(detector, texts[start : start + CHUNK])
            counted = [ids for ids in encoded if len(ids) >= SHORTEST]
            short += len(encoded) - len(counted)
            parts.append(_p_values(detector, counted))
            for length, p in p_by_length(counted, detector, LENGTHS).items():
                cut[length].append(p)
            done += len(encoded)
            on_done(done, total)
        whole[family] = np.concatenate([np.zeros(0), *parts])
    if not sum(map(len, whole.values())):
        raise InputError(
            f"none of the {total} nulls has {SHORTEST} tokens: give longer texts, best of the "
            "kind and length that you will test"
        )
    p_values: dict[int | None, Floats] = {None: np.concatenate(list(whole.values()))}
    p_values |= {length: np.concatenate(parts) for length, parts in cut.items() if parts}
    if own:
        encoded = _encoded(detector, own)
        whole[OWN] = _p_values(detector, [ids for ids in encoded if len(ids) >= SHORTEST])
    ranked = _ranked(whole, detector.fpr)
    chance = family_wise(_by_chance(ranked[0], detector.fpr), len(ranked))
    every = p_values[None]
    return FalsePositives(
        len(every), short, _rates(p_values, detector.fpr),
        tuple(RateAt(None, nominal, Rate.at(every, nominal)) for nominal in DRAWN),
        ranked, float(chance),
    )  # fmt: skip


def detections(detector: Detector, marked: Sequence[str]) -> Detections:
    """Return how often marked texts are found, by their length."""
    encoded = _encoded(detector, marked)
    lengths = [len(ids) for ids in encoded]
    check_lengths(lengths, "marked")
    whole = list(detector.detect_many(encoded))
    words = [one.strength or NOT_FOUND for one in whole]
    power = p_by_length(encoded, detector, LENGTHS)
    along = p_by_length(encoded, detector, range(STEP, max(lengths) + 1, STEP))
    curve = tuple(
        RateAt(length, detector.fpr, Rate.at(p, detector.fpr))
        for length, p in along.items()
        if len(p) >= FEWEST
    )
    return Detections(
        len(encoded), float(np.median(lengths)), max(lengths),
        {word: words.count(word) for word in STRENGTHS},
        sum(one.green for one in whole) / max(1, sum(one.pairs for one in whole)),
        _rates(power, detector.fpr), curve, tuple(needed(curve, one) for one in SHARES),
    )  # fmt: skip


def check_lengths(lengths: Sequence[int], kind: str) -> None:
    """Raise `InputError` where too few texts are as long as the first length that is stated."""
    enough = sum(length >= LENGTHS[0] for length in lengths)
    if enough < FEWEST:
        raise InputError(
            f"{enough} of {len(lengths)} {kind} texts have {LENGTHS[0]} tokens, too few to say "
            f"anything: give longer texts, or have the model write more of them or longer ones "
            "(--samples, --tokens, --suppress-end)"
        )


def needed(curve: Sequence[RateAt], share: float) -> Needed:
    """Return from which length of a curve on a share of the texts is found.

    >>> curve = [RateAt(10, 0.01, Rate.of(9, 10)), RateAt(20, 0.01, Rate.of(10, 10))]
    >>> needed(curve, 0.95)
    Needed(share=0.95, tokens=20, assured=None)
    """

    def first(reached: Callable[[Rate], bool]) -> int | None:
        length = None
        for point in reversed(curve):
            if not reached(point.found):
                break
            length = point.tokens
        return length

    return Needed(
        share, first(lambda rate: rate.share >= share), first(lambda rate: rate.low >= share)
    )


def _encoded(detector: Detector, texts: Sequence[str]) -> list[Ids]:
    return detector.tokenizer.encode_many([scored_text(text) for text in texts])


def _p_values(detector: Detector, encoded: Sequence[Ids]) -> Floats:
    return np.array([one.p_value for one in detector.detect_many(encoded)])


def _rates(
    p_values: Mapping[int, Floats] | Mapping[int | None, Floats], chosen: float
) -> tuple[RateAt, ...]:
    return tuple(
        RateAt(length, nominal, Rate.at(p, nominal))
        for length, p in p_values.items()
        for nominal in rates_with(chosen)
    )


def _ranked(whole: Mapping[str, Floats], chosen: float) -> tuple[FamilyRate, ...]:
    """Return the rate of each family that has texts, the worst first."""
    rates = [FamilyRate(family, Rate.at(p, chosen)) for family, p in whole.items() if len(p)]
    return tuple(sorted(rates, key=lambda one: (_by_chance(one, chosen), -one.found.share)))


def _by_chance(one: FamilyRate, chosen: float) -> float:
    """Return the chance of so many hits in a family that keeps the chosen rate."""
    return float(binomial_tail(one.found.hits, one.found.count, chosen))
