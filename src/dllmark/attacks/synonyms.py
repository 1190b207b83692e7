"""Synonyms in place of words, from WordNet's own database files.

The files are plain text and documented (`wndb(5WN)`): a line of `data.noun` is a set of words of
one meaning, and `cntlist.rev` tells how often people used a word in each of its meanings. Nothing
on PyPI that is kept brings them, so whoever attacks names the folder they are in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dllmark.attacks.characters import chosen_places
from dllmark.errors import InputError
from dllmark.files import reading

PARTS_OF_SPEECH = {"noun": "1", "verb": "2", "adj": "3", "adv": "4"}
"""The ending of a part of speech's file, and its number in a sense key."""

FUNCTION_WORDS = {
    "about", "after", "any", "as", "before", "being", "but", "by", "can", "do", "down", "have",
    "in", "like", "might", "not", "off", "on", "one", "own", "two", "up", "while", "will",
}  # fmt: skip
"""Words that mostly stand for another one than WordNet has synonyms of: its "can" is a tin."""

Synonyms = Mapping[str, Sequence[str]]

_WORD = re.compile(r"[A-Za-z]+")


def read_wordnet(folder: Path) -> Synonyms:
    """Return the synonyms of each word in the meaning that people use most.

    Only single words count, as they stand in the dictionary: "sky", not "skies" or "blue sky".
    """
    best: dict[str, tuple[int, tuple[str, ...]]] = {}
    try:
        uses = {
            _short(sense): int(times)
            for sense, _, times in map(str.split, _lines(folder / "cntlist.rev"))
        }
        for words in _senses(folder):
            for word, sense in words.items():
                if uses.get(sense, 0) > best.get(word, (0, ()))[0]:
                    others = tuple(other for other in words if other.lower() != word.lower())
                    best[word] = uses[sense], others
    except ValueError:
        raise InputError(
            f"{folder} has files of another format: give a folder with the database files of "
            "WordNet 3, such as data.noun and cntlist.rev"
        ) from None
    return {
        word: others for word, (_, others) in best.items() if others and word not in FUNCTION_WORDS
    }


def replace_synonyms(text: str, ratio: float, rng: np.random.Generator, synonyms: Synonyms) -> str:
    """Return the text with a share of those words that have a synonym replaced by one.

    >>> replace_synonyms("Big dog", 1.0, np.random.default_rng(0), {"big": ["large"]})
    'Large dog'
    """
    words = [word for word in _WORD.finditer(text) if word[0].lower() in synonyms]
    chosen = sorted(chosen_places(range(len(words)), ratio, rng))
    parts, end = [], 0
    for word in (words[at] for at in chosen):
        choices = synonyms[word[0].lower()]
        new = choices[int(rng.integers(len(choices)))]
        parts += [text[end : word.start()], _in_case_of(word[0], new)]
        end = word.end()
    return "".join([*parts, text[end:]])


def _senses(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the single words of every meaning, each with the key of its sense."""
    for part, number in PARTS_OF_SPEECH.items():
        for line in _lines(folder / f"data.{part}"):
            if line.startswith(" "):  # the licence
                continue
            _, file, kind, count, *rest = line.split(" ")
            names = [name.partition("(")[0] for name in rest[: 2 * int(count, 16) : 2]]
            ids = rest[1 : 2 * int(count, 16) : 2]
            yield {
                name: f"{name.lower()}%{'5' if kind == 's' else number}:{file}:{int(id_, 16):02}"
                for name, id_ in zip(names, ids, strict=True)
                if _WORD.fullmatch(name)
            }


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, blank ones left out."""
    with reading(path):
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line]


def _short(sense: str) -> str:
    """Return a sense key without the head word that tells adjectives apart.

    >>> _short("light%3:00:01::")
    'light%3:00:01'
    """
    return ":".join(sense.split(":")[:3])


def _in_case_of(word: str, new: str) -> str:
    """Return a word with a capital where another has one."""
    if word.isupper() and len(word) > 1:
        return new.upper()
    return new[0].upper() + new[1:] if word[0].isupper() else new
