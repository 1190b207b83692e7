"""Changes to the characters of a text, not to its tokens; some of them a reader cannot see.

Each takes a text, the share of it to change and a random generator. `dllmark detect --normalize`
undoes lookalikes, invisible characters and unusual spaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from dllmark.attacks.tokens import check_ratio
from dllmark.detection.normalize import LOOKALIKES, ZERO_WIDTH
from dllmark.errors import InputError

SPACES = ("  ", "\n", "\t", "\u00a0", "\u2009")
"""What may replace a space: two of them, a line end, a tab, one that does not break, a thin one."""

_WORD = re.compile(r"[^\W\d_]+")
_CHUNK = re.compile(r"\s*\S+")


def homoglyphs(text: str, ratio: float, rng: np.random.Generator) -> str:
    """Return the text with a share of those letters that have a lookalike replaced by one.

    >>> homoglyphs("one", 1.0, np.random.default_rng(0)) == "one"
    False
    """
    replaced = list(text)
    for at in chosen_places(
        [at for at, letter in enumerate(text) if letter in LOOKALIKES], ratio, rng
    ):
        replaced[at] = _one_of(LOOKALIKES[text[at]], rng)
    return "".join(replaced)


def zero_width(text: str, ratio: float, rng: np.random.Generator) -> str:
    """Return the text with an invisible character behind a share of its characters."""
    widened = list(text)
    for at in chosen_places(range(len(text)), ratio, rng):
        widened[at] += _one_of(ZERO_WIDTH, rng)
    return "".join(widened)


def change_case(text: str, ratio: float, rng: np.random.Generator) -> str:
    """Return the text with the first letter of a share of its words in the other case.

    >>> change_case("Two words", 1.0, np.random.default_rng(0))
    'two Words'
    """
    changed = list(text)
    for at in chosen_places([word.start() for word in _WORD.finditer(text)], ratio, rng):
        changed[at] = text[at].swapcase()
    return "".join(changed)


def change_spaces(text: str, ratio: float, rng: np.random.Generator) -> str:
    """Return the text with a share of its spaces replaced by other white space, see `SPACES`."""
    changed = list(text)
    for at in chosen_places([at for at, one in enumerate(text) if one == " "], ratio, rng):
        changed[at] = _one_of(SPACES, rng)
    return "".join(changed)


def truncate(text: str, ratio: float, rng: np.random.Generator) -> str:
    """Return the text without the last share of its words; `rng` is not used.

    >>> truncate("One two  three four", 0.5, np.random.default_rng(0))
    'One two'
    """
    check_ratio(ratio)
    chunks = _CHUNK.findall(text)
    return "".join(chunks[: len(chunks) - round(len(chunks) * ratio)])


TextAttack = Callable[[str, float, np.random.Generator], str]

TEXT_ATTACKS: dict[str, TextAttack] = {
    "homoglyphs": homoglyphs,
    "zero-width": zero_width,
    "case": change_case,
    "whitespace": change_spaces,
    "truncate": truncate,
}


def paste(text: str, ratio: float, rng: np.random.Generator, humans: Sequence[str]) -> str:
    """Return the text, whole, inside human text; `ratio` is its share of the result's words.

    The human words are those of the given texts in a random order, cut where there are enough; the
    text stands between two of them, or at an end.

    >>> result = paste("two words", 0.5, np.random.default_rng(0), ["from a human"])
    >>> (len(result.split()), "two words" in result)
    (4, True)
    """
    check_ratio(ratio)
    words = len(_CHUNK.findall(text))
    if words and not ratio:
        raise InputError("the ratio is the share of marked words in the result: more than 0")
    wanted = round(words / ratio) - words if words else 0
    around: list[str] = []
    for number in rng.permutation(len(humans)):
        if len(around) >= wanted:
            break
        around += _CHUNK.findall(f" {humans[number].strip()}")
    if len(around) < wanted:
        raise InputError(
            f"{wanted} human words are needed around a text of {words}, and there are "
            f"{len(around)}: give more human text, or a higher ratio"
        )
    at = rng.integers(0, wanted, endpoint=True)
    before, after = "".join(around[:at]).lstrip(), "".join(around[at:wanted])
    return f"{before} {text.strip()}{after}" if before else text.strip() + after


def chosen_places(places: Sequence[int], ratio: float, rng: np.random.Generator) -> Sequence[int]:
    """Return a random share of some places in a text."""
    check_ratio(ratio)
    return [places[at] for at in rng.permutation(len(places))[: round(len(places) * ratio)]]


def _one_of(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]
