"""What a detection says in a few words: the verdict, and how strong the evidence is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dllmark.detection.detector import Detection

Strength = Literal["weak", "clear", "overwhelming"]

CLEAR, OVERWHELMING = 1e-4, 1e-10
"""The largest p-values that are called so.

Among a hundred unmarked texts the chance of one hit up to the first is less than 1 %, and among a
hundred million that of one up to the second.
"""

UNCLEAR = "marked, payload unclear"


def strength(p_value: float) -> Strength:
    """Return how strong the evidence is of a text that counts as watermarked.

    >>> strength(0.008), strength(1e-5), strength(1e-20)
    ('weak', 'clear', 'overwhelming')
    """
    if p_value <= OVERWHELMING:
        return "overwhelming"
    return "clear" if p_value <= CLEAR else "weak"


def conclusion(detection: Detection) -> str:
    """Return the verdict in a few words: how strong the evidence, or how likely a find, and where.

    A payload is named where one was looked for in a marked text.
    """
    verdict, rate = detection.verdict.value, f"rate {percent(detection.fpr)}"
    if detection.strength:
        if hasattr(detection, "payload"):
            named = detection.payload is not None
            verdict = f"{verdict}, payload {detection.payload}" if named else UNCLEAR
        return f"{verdict} ({detection.strength} evidence, {rate})"
    power = f"power {percent(detection.power)}, {rate}"
    if verdict == "too short":
        power += f"; {detection.pairs_needed:,} pairs needed"
    return f"{verdict} ({power})"


def percent(share: float) -> str:
    """Return a share in percent, in three digits.

    >>> percent(0.01), percent(1e-6), percent(0.5387), percent(0.999)
    ('1 %', '0.0001 %', '53.9 %', '99.9 %')
    """
    return f"{100 * share:.3g} %"
