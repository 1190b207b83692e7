"""Write a text that a detector takes for marked, with stolen colours and without the key."""

from __future__ import annotations

import numpy as np

from dllmark.attacks.ngrams import NGrams
from dllmark.attacks.steal import Estimates
from dllmark.relation.tokenizer import Ids

STRENGTH = 6.0
"""The bias on a pair that is green for certain.

Each token is one of a few that fit, so a strong bias costs little fluency.
"""


def forge(
    estimates: Estimates,
    table: NGrams,
    texts: int,
    length: int,
    rng: np.random.Generator,
    strength: float = STRENGTH,
) -> Ids:
    """Return new texts [N, T] that follow the table and lean towards pairs believed green.

    It is what the marker does, with the chance that a pair is green in place of its colour.

    >>> table = NGrams([np.array([1, 2, 1, 3, 1])], vocab_size=10)
    >>> green = Estimates(np.array([12]), np.array([9.0]), 10)  # the pair of 1 and 2
    >>> forge(green, table, 1, 6, np.random.default_rng(0), strength=50.0).tolist()
    [[1, 2, 1, 2, 1, 2]]
    """

    def lean(written: Ids, candidates: Ids) -> np.ndarray:
        return strength * estimates.lean(written[:, -1:], candidates)

    return table.write(texts, length, rng, lean)[0]
