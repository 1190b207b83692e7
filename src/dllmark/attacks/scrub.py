"""Remove a mark with stolen colours: change the tokens whose pairs are believed green."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dllmark.attacks.ngrams import Floats, NGrams
from dllmark.attacks.steal import Estimates
from dllmark.attacks.tokens import check_ratio
from dllmark.relation.tokenizer import Ids

CANDIDATES = 200
"""The likeliest tokens behind the one before, among which a substitute is looked for."""

STRENGTH = 6.0
"""How many nats of fluency it is worth to turn a pair from green for certain to unknown."""

Greenness = Callable[[Ids], Floats]
"""From stretches of text [K, T]: the sum of P(green) - P(red) over the pairs of each."""


def scrub(
    ids: Ids, ratio: float, estimates: Estimates, table: NGrams, rng: np.random.Generator
) -> Ids:
    """Return the ids with a share of them replaced: those first whose pairs are believed green.

    A substitute has followed the token before it, and preceded the one behind it, in the table's
    texts; of these the one is taken that is likely and makes pairs believed red. A token without
    such a substitute stays, so less than the share may change. Where no colour is known, tokens
    are chosen at random.
    """
    return scrub_by(ids, ratio, greenness_of(estimates), table, rng)


def greenness_of(estimates: Estimates) -> Greenness:
    """Return the greenness of stretches by the estimates of their pairs of neighbours."""
    return lambda stretch: estimates.lean(stretch[:, :-1], stretch[:, 1:]).sum(axis=1)


def scrub_by(
    ids: Ids,
    ratio: float,
    greenness: Greenness,
    table: NGrams,
    rng: np.random.Generator,
    reach: int = 1,
) -> Ids:
    """Do as `scrub` does for any relation, of pairs that lie within `reach` tokens."""
    check_ratio(ratio)
    ids, left_to_change = ids.copy(), round(ratio * len(ids))
    may_change = np.ones(len(ids), dtype=np.bool_)
    while left_to_change:
        offers = {
            int(at): offer
            for at in np.flatnonzero(may_change)
            if (offer := _substitute(ids, int(at), greenness, table, reach)) is not None
        }
        order = sorted(rng.permutation(list(offers)).tolist(), key=lambda at: -offers[at][1])
        busy = np.zeros(len(ids), dtype=np.bool_)  # near a change, offers hold no longer
        for at in order:
            if left_to_change and not busy[at]:
                ids[at], may_change[at] = offers[at][0], False
                busy[max(at - reach, 0) : at + reach + 1] = True
                left_to_change -= 1
        if not order:
            break
    return ids


def _substitute(
    ids: Ids, at: int, greenness: Greenness, table: NGrams, reach: int
) -> tuple[int, float] | None:
    """Return the best other token at a place, and how much less green the text is with it."""
    if at == 0:
        return None
    tokens, chances = table.followers(int(ids[at - 1]))
    if len(tokens) > CANDIDATES:
        likely = np.argpartition(-chances, CANDIDATES)[:CANDIDATES]
        tokens, chances = tokens[likely], chances[likely]
    if at + 1 < len(ids):
        chances = chances + table.log_chance(tokens, ids[at + 1])
    fits = np.isfinite(chances) & (tokens != ids[at])
    tokens, chances = tokens[fits], chances[fits]
    if not len(tokens):
        return None
    start = max(at - reach, 0)
    stretch = np.tile(ids[start : at + reach + 1], (len(tokens) + 1, 1))
    stretch[1:, at - start] = tokens
    before, after = np.split(greenness(stretch), [1])
    best = int(np.argmax(chances - STRENGTH * after))
    return int(tokens[best]), float(before[0] - after[best])
