"""A finding in words, for a file or a desk: what was counted, what it means, what it does not."""

from __future__ import annotations

import math

from dllmark.detection.detector import Detection, Verdict
from dllmark.detection.power import POWER, USUAL
from dllmark.detection.stats import binomial_tail
from dllmark.detection.words import percent
from dllmark.terminal import p_value

ONE_TEXT = (
    "A rate of 1 % suits one text that there is a reason to ask about. Where it was found among "
    "many, ask for a rate well below one in their number."
)

NOT_PROVEN = {
    Verdict.WATERMARKED: (
        "who wrote, used or published the text; that all of it is marked, since a quotation "
        "carries its mark along; that its wording was not changed; that nobody forged the mark; "
        "that anything it says is true. The p-value is not the probability that the text is "
        "unmarked: that also depends on how many of the texts examined are marked."
    ),
    Verdict.NOT_DETECTED: (
        "that a person wrote the text. Text that was edited, paraphrased or translated, that is "
        "very predictable, that another key marked, or that a model wrote without a mark gives the "
        "same finding."
    ),
    Verdict.TOO_SHORT: (
        "anything. It is a sign neither of a mark nor of its absence, and says nothing about who "
        "wrote the text."
    ),
}


def statement(detection: Detection, label: str | None = None) -> str:
    """Return a finding in words: verdict, counts, rate, keys tried, and what it does not prove.

    >>> print(statement(Detector(key).detect("word")).splitlines()[0])
    Finding: the text is too short to tell.
    """
    parts = ["Finding: " + _finding(detection, label), _counts(detection)]
    if detection.verdict is Verdict.WATERMARKED:
        parts += [_payload(detection), _strength(detection)]
    else:
        parts.append(_power(detection))
    parts.append("What this does not prove: " + NOT_PROVEN[detection.verdict])
    parts.append(
        f"Figures: {_tried(detection)} tried, best key {detection.key_id}, scheme "
        f"{detection.scheme}, gamma {detection.gamma:g}, {detection.scoring} pairs, rate "
        f"{percent(detection.fpr)}, p-value {p_value(detection.p_value)}, z {detection.z:.2f}."
    )
    return "\n".join(part for part in parts if part)


def _finding(detection: Detection, label: str | None) -> str:
    if detection.verdict is Verdict.TOO_SHORT:
        return "the text is too short to tell."
    key = f"key {detection.key_id}" + (f", {label}" if label else "")
    if detection.verdict is Verdict.WATERMARKED:
        return (
            f"the text is consistent with the watermark of {key}. The evidence is "
            f"{detection.strength}."
        )
    if detection.keys_tried > 1:
        return f"no watermark of the {_tried(detection)} that were tried was detected."
    return f"no watermark of {key} was detected."


def _counts(detection: Detection) -> str:
    if not detection.pairs:
        return "Counted: the text has no pair of neighbouring tokens to count."
    tried = ""
    if detection.keys_tried > 1:
        tried = (
            f" under the best of {_tried(detection)}, all of which were tried: this is taken into "
            "account"
        )
    pairs = f"{detection.pairs:,} {'distinct ' * (detection.scoring == 'unique')}pairs"
    return (
        f"Counted: of {pairs} of neighbouring tokens (words or parts of words), "
        f"{detection.green:,} are green, which is {percent(detection.green_fraction)}. Without the "
        f"mark {percent(detection.expected)} are expected. By chance alone, "
        f"{_frequency(detection.p_value)} unmarked texts would have as many or more{tried}."
    )


def _tried(detection: Detection) -> str:
    tried = detection.keys_tried
    what = "payload" if hasattr(detection, "payload") else "key"
    return f"{tried:,} {what}{'s' * (tried > 1)}"


def _strength(detection: Detection) -> str:
    """Say how often the verdict is wrong, and where a text fits neither a mark nor its absence."""
    words = (
        f"The verdict was made at a rate of {percent(detection.fpr)}: at most that share of "
        "unmarked texts is called watermarked. "
    )
    words += ONE_TEXT if detection.strength == "weak" else ""
    fewer = 1 - binomial_tail(detection.green + 1, detection.pairs, detection.expected_if_marked)
    if fewer < 0.01:
        words += (
            f" A text this long that is marked throughout would have about "
            f"{percent(detection.expected_if_marked)} green pairs{_known(detection)}; this one "
            "has far fewer. Either a small part of it is marked, which `--spans` may show, or "
            "chance did it, or the mark was written weakly or worn away by edits."
        )
    return words.strip()


def _payload(detection: Detection) -> str:
    if not hasattr(detection, "payload"):
        return ""
    if detection.payload is None:
        return "Payload: unclear. More than one payload of the key could have marked the text."
    return (
        f"Payload: {detection.payload}. The probability that another payload marked the text is "
        f"at most {percent(detection.fpr)}, if all were equally likely before."
    )


def _power(detection: Detection) -> str:
    found = (
        f"Power: of texts with as many pairs that are marked throughout, "
        f"{percent(detection.power)} would be called watermarked at the rate of "
        f"{percent(detection.fpr)}{_known(detection)}."
    )
    if detection.verdict is Verdict.TOO_SHORT:
        found += f" For {percent(POWER)} a text needs {detection.pairs_needed:,} pairs."
    return found


def _known(detection: Detection) -> str:
    """Say where the green share of marked texts comes from."""
    share = percent(detection.expected_if_marked)
    if detection.mark_strength == USUAL:
        return f" (if {share} of a marked text's pairs are green, which is assumed, not measured)"
    return f" (if {share} of a marked text's pairs are green, as was measured)"


def _frequency(p_value: float) -> str:
    """Return a p-value as a share of texts.

    >>> _frequency(0.412), _frequency(0.008), _frequency(2e-20), _frequency(0)
    ('41 in 100', '1 in 125', 'fewer than 1 in 10^19', 'fewer than 1 in 10^300')
    """
    if p_value >= 0.1:
        return f"{100 * p_value:.0f} in 100"
    if p_value > 1e-6:
        return f"1 in {float(f'{1 / p_value:.3g}'):,.0f}"
    return f"fewer than 1 in 10^{math.floor(-math.log10(p_value)) if p_value else 300}"
