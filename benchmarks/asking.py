"""Count the questions of a forger who may ask a detector, and has no marked text at all.

Usage: python benchmarks/asking.py

A text of 61 random words is changed word by word until its p-value is at most 1e-6. A forger who is
told counts keeps every change that adds a green pair. One who is told only which of 1, 0.01, 0.0001
and 0.000001 the p-value does not exceed (`dllmark serve --public`) first asks about random texts
until one is at the edge of 0.01, spoils it by one pair, and looks for changes that make that good
again: each adds at least one green pair, and together they add up.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

from dllmark.detection.stats import binomial_tail

WORDS, LENGTH, RUNS = 16_384, 61, 200
LEVELS = (1e-2, 1e-4, 1e-6)
REACHED = sum(
    np.stack([binomial_tail(np.arange(LENGTH), pairs, 0.5) for pairs in range(LENGTH)]) <= level
    for level in LEVELS
)
"""How many levels a number of pairs reaches with a number of green ones among them."""


class Server:
    """A detector with a secret colouring, which counts what it is asked."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._secret = int(rng.integers(1 << 62))
        self.asked = 0

    def ask(self, text: list[int]) -> tuple[int, int]:
        """Return the number of green pairs, and how many of the levels the p-value reaches."""
        self.asked += 1
        pairs = set(pairwise(text))
        green = sum(hash((self._secret, *pair)) >> 7 & 1 for pair in pairs)
        return green, int(REACHED[len(pairs), green])


def with_word(text: list[int], at: int, rng: np.random.Generator) -> list[int]:
    """Return a text with another word at one place."""
    return [*text[:at], int(rng.integers(WORDS)), *text[at + 1 :]]


def told_counts(server: Server, rng: np.random.Generator) -> None:
    """Forge with the counts of green pairs."""
    text = rng.integers(WORDS, size=LENGTH).tolist()
    green, level = server.ask(text)
    while level < len(LEVELS):
        new = with_word(text, int(rng.integers(LENGTH)), rng)
        count, level_there = server.ask(new)
        if count > green:
            text, green, level = new, count, level_there


def told_levels(server: Server, rng: np.random.Generator) -> int:
    """Forge with the levels of a public server; return the questions before the edge is found."""
    text, level = [], 0
    while level == 0:
        text = rng.integers(WORDS, size=LENGTH).tolist()
        _, level = server.ask(text)
    at_edge = server.asked
    while level < len(LEVELS):
        spoiled, spot = text, 0
        while server.ask(spoiled)[1] >= level:  # what does not spoil is kept: it does no harm
            text, spot = spoiled, int(rng.integers(LENGTH))
            spoiled = with_word(text, spot, rng)
        text, level = _repaired(server, text, spoiled, spot, level, rng)
    return at_edge


def _repaired(
    server: Server, text: list[int], spoiled: list[int], spot: int, level: int,
    rng: np.random.Generator,
) -> tuple[list[int], int]:  # fmt: skip
    """Return the text with all changes that repair the spoiled one, and the level it reaches."""
    for at in range(1, LENGTH - 1, 2):  # places that share no pair with each other
        for _ in range(4 * (abs(at - spot) > 1)):
            change = with_word(spoiled, at, rng)
            if server.ask(change)[1] >= level:
                text = [*text[:at], change[at], *text[at + 1 :]]
                reached = server.ask(text)[1]
                if reached > level:
                    return text, reached
                break
    return text, level


def main() -> None:
    """Print a table of questions."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    rng = np.random.default_rng(0)
    asked: dict[str, list[int]] = {"counts": [], "levels": [], "levels, to the edge": []}
    for _ in range(RUNS):
        server = Server(rng)
        told_counts(server, rng)
        asked["counts"].append(server.asked)
        server = Server(rng)
        asked["levels, to the edge"].append(told_levels(server, rng))
        asked["levels"].append(server.asked)
    print("| told | questions: median | 10 % | 90 % |")
    print("| --- | --- | --- | --- |")
    for name, questions in asked.items():
        middle, low, high = np.quantile(questions, [0.5, 0.1, 0.9])
        print(f"| {name} | {middle:.0f} | {low:.0f} | {high:.0f} |")


if __name__ == "__main__":
    main()
