"""What follows what in some texts: a table to write from, and to find other words in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dllmark.errors import InputError
from dllmark.relation.tokenizer import Ids

Floats = NDArray[np.float64]

Lean = Callable[[Ids, Ids], Floats]
"""From the tokens written so far [N, T] and candidates [N, K]: how many nats each one gains."""

CANDIDATES = 16
"""Tokens drawn for each place of a text, of which the lean then chooses one."""


class NGrams:
    """Every place of some texts, by the `order` tokens before it.

    A token is drawn as often as it stood behind the same tokens. Nothing is smoothed: what never
    followed is never drawn.

    >>> table = NGrams([np.array([1, 2, 3]), np.array([2, 4, 2, 4])], vocab_size=10)
    >>> tokens, log_chances = table.followers(2)
    >>> tokens.tolist(), np.exp(log_chances).round(2).tolist()
    ([3, 4], [0.33, 0.67])
    """

    def __init__(self, texts: Sequence[Ids], vocab_size: int, order: int = 1) -> None:
        self.vocab_size = vocab_size
        self._ids = ids = np.concatenate([np.zeros(0, dtype=np.int64), *texts])
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        within = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        place = np.flatnonzero(within >= order)
        if not len(place):
            raise InputError(f"there is no text of more than {order} tokens to write like")
        ending = ids.copy()  # the last `order` tokens up to each place, as one number
        for back in range(1, order):
            ending[back:] += ids[:-back] * vocab_size**back
        pair = ending[place - 1] * vocab_size + ids[place]
        sort = np.argsort(pair, kind="stable")
        self._place, pair = place[sort], pair[sort]
        self._contexts, self._start, self._size = np.unique(
            pair // vocab_size, return_index=True, return_counts=True
        )
        run = np.flatnonzero(np.diff(pair, prepend=-1))
        times = np.diff(run, append=len(pair))
        in_context = np.repeat(self._size, self._size)[run]
        self._pairs, self._log_chances = pair[run], np.log(times / in_context)
        self._pair_at = np.zeros(len(ids), dtype=np.int64)
        self._pair_at[self._place] = np.repeat(np.arange(len(run)), times)
        group = np.minimum(np.searchsorted(self._contexts, ending), len(self._contexts) - 1)
        known = (self._contexts[group] == ending) & (within >= order - 1)
        self._group = np.where(known, group, -1)
        self._starts = np.flatnonzero(known)

    def followers(self, context: int) -> tuple[Ids, Floats]:
        """Return the tokens that followed a context, and the logarithms of their chances."""
        bounds = np.array([context, context + 1]) * self.vocab_size
        start, end = np.searchsorted(self._pairs, bounds)
        return self._pairs[start:end] % self.vocab_size, self._log_chances[start:end]

    def log_chance(self, context: Ids, token: Ids) -> Floats:
        """Return the logarithm of each token's chance behind its context, -inf for none."""
        pair = context * self.vocab_size + token
        at = np.minimum(np.searchsorted(self._pairs, pair), len(self._pairs) - 1)
        return np.where(self._pairs[at] == pair, self._log_chances[at], -np.inf)

    def write(
        self,
        texts: int,
        length: int,
        rng: np.random.Generator,
        lean: Lean | None = None,
        candidates: int = CANDIDATES,
    ) -> tuple[Ids, Floats]:
        """Return new texts [N, T], and the log-chance that the table alone gives each token.

        With a lean, each token is one of several candidates, chosen with chances as its nats say:
        a bias on the logits, up to the number of candidates. Without one a single candidate is
        the same. Where nothing follows, a text goes on at a random place.
        """
        candidates = candidates if lean is not None else 1
        written = np.empty((texts, length), dtype=np.int64)
        log_chance = np.zeros((texts, length))
        at = rng.choice(self._starts, texts)
        written[:, 0] = self._ids[at]
        for step in range(1, length):
            group = self._group[at]
            dead = group < 0
            group[dead] = self._group[rng.choice(self._starts, int(dead.sum()))]
            chosen = rng.random((texts, candidates)) * self._size[group][:, None]
            place = self._place[self._start[group][:, None] + chosen.astype(np.int64)]
            if lean is None:
                at = place[:, 0]
            else:
                nats = lean(written[:, :step], self._ids[place])
                # The first of several waiting times, each shorter by its nats: a draw by softmax.
                best = np.argmin(rng.standard_exponential(nats.shape) * np.exp(-nats), axis=1)
                at = place[np.arange(texts), best]
            written[:, step] = self._ids[at]
            log_chance[:, step] = self._log_chances[self._pair_at[at]]
        return written, log_chance
