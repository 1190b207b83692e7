"""Estimate the colours of pairs from marked texts, without the key.

A pair that marked texts hold more often than unmarked ones is probably green, one that they hold
less often is probably red: the attack of Jovanović et al. (ICML 2024) on a relation of two tokens.
Each pair counts once a text, as it does for the detector. docs/results/stealing.md says how many
texts it takes.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dllmark.errors import InputError, MismatchError
from dllmark.files import atomic_write, reading, writing
from dllmark.relation.tokenizer import Ids, Tokenizer

Floats = NDArray[np.float64]

FORMAT = "dllmark-estimates-1"

FEWEST_TEXTS = 10
"""Fewer marked texts say next to nothing of any pair."""

GREEN_RATE, RED_RATE = 1.5, 0.5
"""How often the thief expects a green and a red pair, compared with unmarked text.

They belong to a green share of three quarters. The thief cannot know it, and need not: another
guess moves all estimates together.
"""


@dataclass(frozen=True)
class Counts:
    """In how many texts each pair occurs.

    A pair is one number, context * vocab_size + token; the context is the token before, or what
    else a relation looks at. The numbers are distinct and in order.
    """

    pairs: Ids
    texts_with: Ids
    vocab_size: int


@dataclass(frozen=True)
class Estimates:
    """The log-odds of each pair to be green, positive where it probably is.

    >>> estimates = Estimates(np.array([10 * 100 + 5]), np.array([2.0]), 100)
    >>> estimates.lean(np.array([10, 10]), np.array([5, 6])).round(2).tolist()
    [0.76, 0.0]
    """

    pairs: Ids
    log_odds: Floats
    vocab_size: int

    def lean(self, context: Ids, token: Ids) -> Floats:
        """Return P(green) - P(red) of each pair, 0 for one never seen; the two sides broadcast."""
        pair = context * self.vocab_size + token
        if not len(self.pairs):
            return np.zeros(pair.shape)
        place = np.minimum(np.searchsorted(self.pairs, pair), len(self.pairs) - 1)
        return np.where(self.pairs[place] == pair, np.tanh(self.log_odds[place] / 2), 0.0)


def check_enough(texts: int) -> None:
    """Raise `InputError` for too few marked texts to compare."""
    if texts < FEWEST_TEXTS:
        raise InputError(
            f"{texts} marked texts say next to nothing: give at least {FEWEST_TEXTS} of one key"
        )


def count(context: Ids, token: Ids, text: Ids, vocab_size: int) -> Counts:
    """Count in how many texts each pair occurs; `text` is the number of the text it stands in.

    >>> pair = count(np.array([7, 7, 7]), np.array([3, 3, 3]), np.array([0, 0, 1]), 10)
    >>> pair.pairs.tolist(), pair.texts_with.tolist()
    ([73], [2])
    """
    low = int(text.max()).bit_length() if len(text) else 0
    code = np.sort(((context * vocab_size + token) << low) | text)
    pair = code[np.diff(code, prepend=-1) != 0] >> low
    first = np.flatnonzero(np.diff(pair, prepend=-1))
    return Counts(pair[first], np.diff(first, append=len(pair)), vocab_size)


def count_texts(texts: Sequence[Ids], tokenizer: Tokenizer) -> Counts:
    """Count in how many texts each pair of neighbours occurs that a detector would score."""
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *texts])
    text = np.repeat(np.arange(len(texts)), [len(one) for one in texts])
    left, right = ids[:-1], ids[1:]
    usable = tokenizer.scored[left] & tokenizer.scored[right] & (text[:-1] == text[1:])
    return count(left[usable], right[usable], text[1:][usable], tokenizer.vocab_size)


def estimate(marked: Counts, unmarked: Counts | None = None) -> Estimates:
    """Return the log-odds of every pair to be green.

    Of m texts with a pair that are marked and u that are not, m is binomial: its chance follows
    from how much marked and unmarked text there is behind the same context, and from the pair's
    rate, 1.5 where it is green and 0.5 where it is red. How common the pair is cancels out.
    Without unmarked texts nothing tells a green pair from a common one, and every pair that
    occurs leans the same way.

    >>> pairs = np.array([73, 74])  # the tokens 3 and 4 behind the token 7
    >>> marked, unmarked = (Counts(pairs, np.array(n), 10) for n in ([30, 10], [20, 20]))
    >>> estimate(marked, unmarked).log_odds.round(1).tolist()
    [7.4, -4.3]
    """
    if unmarked is None:
        whole = np.full(len(marked.pairs), math.log(GREEN_RATE / RED_RATE))
        return Estimates(marked.pairs, whole, marked.vocab_size)
    pairs = np.union1d(marked.pairs, unmarked.pairs)
    m, u = (_spread(counts, pairs) for counts in (marked, unmarked))
    _, context = np.unique(pairs // marked.vocab_size, return_inverse=True)
    overall = m.sum() / max(u.sum(), 1.0)
    # As if each context had been seen once more in unmarked text: the rare ones lean on the rest.
    exposure = (np.bincount(context, m) + overall) / (np.bincount(context, u) + 1)
    both = np.log((exposure * GREEN_RATE + 1) / (exposure * RED_RATE + 1))[context]
    log_odds = m * math.log(GREEN_RATE / RED_RATE) - (m + u) * both
    return Estimates(pairs, log_odds, marked.vocab_size)


def _spread(counts: Counts, pairs: Ids) -> Floats:
    """Return the counts of the given pairs, among which are all that were counted."""
    result = np.zeros(len(pairs))
    result[np.searchsorted(pairs, counts.pairs)] = counts.texts_with
    return result


def save_estimates(estimates: Estimates, path: Path, tokenizer: Tokenizer) -> None:
    """Write estimates as an npz file without pickles, which appears when it is complete.

    It holds `left`, `right` and `log_odds`, an entry a pair, and `about`: a line of JSON with the
    format, the tokenizer and its fingerprint.
    """
    about = {"format": FORMAT, "tokenizer": tokenizer.name, "fingerprint": tokenizer.fingerprint}
    with writing(path), atomic_write(path) as file:
        np.savez_compressed(
            file,
            left=(estimates.pairs // estimates.vocab_size).astype(np.uint32),
            right=(estimates.pairs % estimates.vocab_size).astype(np.uint32),
            log_odds=estimates.log_odds.astype(np.float32),
            about=np.array(json.dumps(about)),
        )


def load_estimates(path: Path, tokenizer: Tokenizer) -> Estimates:
    """Read estimates; raise unless they are of pairs of this tokenizer, and of any at all."""
    try:
        with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            left, right, log_odds = (arrays[name] for name in ("left", "right", "log_odds"))
            known, fingerprint = about["format"] == FORMAT, about["fingerprint"]
            pairs = left.astype(np.int64) * tokenizer.vocab_size + right
            known &= pairs.ndim == 1 and len(log_odds) == len(pairs)
    except (ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile):
        known = False
    if not known:
        raise InputError(f"{path} holds no estimates: make them with `dllmark attack steal`")
    if fingerprint != tokenizer.fingerprint:
        raise MismatchError(
            f"{path} was made with the tokenizer {about['tokenizer']}, which is not "
            f"{tokenizer.name}: name that one with --tokenizer"
        )
    if not len(pairs):
        raise InputError(f"{path} has no pair: steal from more texts")
    return Estimates(pairs, log_odds.astype(np.float64), tokenizer.vocab_size)
