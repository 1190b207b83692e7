"""What a mark withstands: each attack that needs no other model, and those made elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dllmark.attacks.characters import TEXT_ATTACKS, paste
from dllmark.attacks.tokens import TOKEN_ATTACKS, token_edit
from dllmark.detection.detector import Detector
from dllmark.detection.normalize import normalize
from dllmark.errors import InputError
from dllmark.experiments.evaluation.inputs import Attacked
from dllmark.experiments.evaluation.measures import OnDone, Rate
from dllmark.relation.tokenizer import Tokenizer

STRENGTHS = (0.1, 0.3)
"""The shares of a text that are edited, where nothing else is said below."""

OFFLINE = (*TOKEN_ATTACKS, *TEXT_ATTACKS, "paste")
"""The attacks that every report makes."""

OTHER_STRENGTHS = {"truncate": (0.25, 0.5, 0.75), "paste": (0.5, 0.25)}
"""The share that is cut off; the share that the marked text has of the text it is pasted into."""


Change = Callable[[str, np.random.Generator], str]


@dataclass(frozen=True)
class Attack:
    """An attack at one strength, as a change of a text."""

    name: str
    strength: float
    change: Change


@dataclass(frozen=True)
class Withstood:
    """What is found of the marked texts after an attack, at the chosen rate.

    `normalized` is what `dllmark detect --normalize` finds, where that makes a difference. Some
    attacks have no strength.
    """

    attack: str
    strength: float | None
    found: Rate
    normalized: Rate | None

    @property
    def name(self) -> str:
        """The attack with its strength.

        >>> Withstood("swap", 0.1, Rate.of(1, 2), None).name
        'swap 10 %'
        """
        return self.attack if self.strength is None else f"{self.attack} {100 * self.strength:g} %"

    @property
    def best(self) -> Rate:
        """What is found by those who know `--normalize`."""
        return max((self.found, self.normalized or self.found), key=lambda rate: rate.share)


def withstood(
    detector: Detector,
    marked: Sequence[str],
    humans: Sequence[str],
    elsewhere: Sequence[Attacked] = (),
    on_done: OnDone = lambda done, total: None,
) -> list[Withstood]:
    """Return what each attack leaves of the mark; `humans` are texts to paste the marked ones into.

    What happens to a text depends on its place and the attack, so a rerun gives the same.
    """
    plan = planned(detector.tokenizer, humans)
    rows = [_left(detector, one.name, one.strength, one.texts) for one in elsewhere]
    for number, attack in enumerate(plan, 1):
        try:
            texts = [
                attack.change(text, np.random.default_rng([line, round(100 * attack.strength)]))
                for line, text in enumerate(marked)
            ]
        except InputError:  # too few human words to paste into
            continue
        rows.append(_left(detector, attack.name, attack.strength, texts))
        on_done(number, len(plan))
    return rows


def _left(detector: Detector, name: str, strength: float | None, texts: Sequence[str]) -> Withstood:
    """Return what is found of texts after an attack, as they are and normalised."""
    cleaned = [normalize(text) for text in texts]
    normalized = _found(detector, cleaned) if cleaned != list(texts) else None
    return Withstood(name, strength, _found(detector, texts), normalized)


def planned(tokenizer: Tokenizer, humans: Sequence[str]) -> list[Attack]:
    """Return all attacks of a report, each at its strengths."""

    def change(name: str, ratio: float) -> Change:
        if name in TOKEN_ATTACKS:
            return token_edit(name, ratio, tokenizer)
        if name in TEXT_ATTACKS:
            return lambda text, rng: TEXT_ATTACKS[name](text, ratio, rng)
        return lambda text, rng: paste(text, ratio, rng, humans)

    return [
        Attack(name, strength, change(name, strength))
        for name in OFFLINE
        for strength in OTHER_STRENGTHS.get(name, STRENGTHS)
    ]


def _found(detector: Detector, texts: Sequence[str]) -> Rate:
    p_values = np.array([detection.p_value for detection in detector.detect_many(texts)])
    return Rate.at(p_values, detector.fpr)
