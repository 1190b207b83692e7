"""Undo changes to a text that a reader cannot see, so that its tokens are the ones written.

An invisible character inside a word, or a Cyrillic о in place of a Latin one, leaves a text as it
looks and changes its tokens. `normalize` takes such tricks back, and only where they are tricks as
far as a text can tell: words of other scripts, emoji and full-width punctuation stay.
"""

from __future__ import annotations

import re
import unicodedata

LOOKALIKES = {
    "a": "а", "c": "сϲ", "d": "ԁ", "e": "е", "h": "һ", "i": "і", "j": "јϳ", "o": "оοօ", "p": "р",
    "q": "ԛ", "s": "ѕ", "w": "ԝ", "x": "х", "y": "у", "A": "АΑ", "B": "ВΒ", "C": "СϹ", "E": "ЕΕ",
    "H": "НΗ", "I": "ІΙӀ", "J": "ЈͿ", "K": "КΚ", "M": "МΜ", "N": "Ν", "O": "ОΟՕ", "P": "РΡ",
    "S": "Ѕ", "T": "ТΤ", "W": "Ԝ", "X": "ХΧ", "Y": "ҮΥ", "Z": "Ζ",
}  # fmt: skip
"""Latin letters, and those of Cyrillic, Greek and Armenian that most fonts draw alike.

Greek letters that stand beside Latin ones in formulas (α, ν, ρ) are not among them.
"""

ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff"
"""Space, non-joiner, joiner, word joiner and byte order mark: characters without a width."""

_LATIN_FOR = {ord(other): letter for letter, others in LOOKALIKES.items() for other in others}
_FOREIGN = "".join(map(chr, _LATIN_FOR))

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\U0001d173-\U0001d17a]"
)
"""Soft hyphens, fillers, direction marks and the like: nothing shows where they stand."""

_JOINERS = re.compile("(?s)(^|.)([\u180b-\u180e\u200c\u200d\ufe00-\ufe0f]+)(?!\u20e3)")
"""What joins or varies letters of some scripts and parts of emoji, with what it stands behind."""

_TAGS = re.compile("(?<![\U0001f3f4\U000e0000-\U000e007f])[\U000e0000-\U000e007f]+")
"""Invisible copies of ASCII, which have a use only behind a black flag (Scotland's, say)."""

_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f]")
_LINE_ENDS = re.compile("[\u0085\u2028\u2029]")
_WORD = re.compile(r"(?:\w|[\u0300-\u036f])+")


def normalize(text: str) -> str:
    """Return the text without invisible characters, lookalike letters and unusual spaces.

    ASCII stays as it is, and so does a text that is already normal.

    >>> normalize("A w\u200bord with a Cyrillic \u0430 ins\u0456de")
    'A word with a Cyrillic а inside'
    """
    while not text.isascii():
        cleaned = _pass(text)
        if cleaned == text:
            break
        text = cleaned  # one step may uncover work for another: e, invisible, accent
    return text


def _pass(text: str) -> str:
    text = _TAGS.sub("", _INVISIBLE.sub("", text))
    text = _JOINERS.sub(_unless_joined, text)
    text = _LINE_ENDS.sub("\n", _SPACES.sub(" ", text))
    text = "".join(map(_plain, text))
    return unicodedata.normalize("NFC", _WORD.sub(_in_latin, text))


def _unless_joined(match: re.Match[str]) -> str:
    """Drop joiners but behind letters of other scripts and behind emoji, which need theirs."""
    before, joiners = match.groups()
    if before.isascii() or _is_latin(before) or unicodedata.category(before)[0] in "NPZ":
        return before
    return before + joiners


def _plain(character: str) -> str:
    """Return the plain form of a letter in another typeface, full width, a ligature or a numeral.

    Digits and punctuation of full width stay: Chinese and Japanese are written with them. So do
    ℝ, ℃ and the like, which texts use for what they mean.
    """
    if character < "\u2160":
        return character
    kind, *_ = unicodedata.decomposition(character).split(" ")
    if kind in ("<font>", "<wide>") or "\ufb00" <= character <= "\ufb06" or character <= "\u217f":
        plain = unicodedata.normalize("NFKC", character)
        if plain.isalpha() or kind == "<font>":
            return plain
    return character


def _in_latin(match: re.Match[str]) -> str:
    """Return a word that is Latin but for lookalikes with these replaced, and any other as it is.

    A letter that cannot be taken for a Latin one shows that the word mixes scripts on purpose.
    """
    word = match.group()
    if word.isascii() or not any(letter in _FOREIGN for letter in word):
        return word
    others = [letter for letter in word if letter.isalpha() and letter not in _FOREIGN]
    if others and all(map(_is_latin, others)):
        return word.translate(_LATIN_FOR)
    return word


def _is_latin(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith("LATIN ")
