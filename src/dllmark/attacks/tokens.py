"""The paper's edits: a share of a text's tokens deleted, inserted, swapped or substituted.

Each takes the ids of a text, the share of its tokens to edit, a random generator, and the tokens
that random ones are drawn from: `ordinary(tokenizer)`, which leaves out masks and ends of text.
The share is of the tokens before the edit, rounded to a whole number of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dllmark.errors import InputError
from dllmark.relation.tokenizer import Ids, Tokenizer


def delete(ids: Ids, ratio: float, rng: np.random.Generator, vocabulary: Ids) -> Ids:
    """Return the ids without a share of them; `vocabulary` is not used.

    >>> rng = np.random.default_rng(0)
    >>> len(delete(np.arange(10), 0.2, rng, np.arange(10)))
    8
    """
    return np.delete(ids, random_positions(ids, ratio, rng))


def insert(ids: Ids, ratio: float, rng: np.random.Generator, vocabulary: Ids) -> Ids:
    """Return the ids with random tokens between them, before the first or behind the last."""
    count = _count(ids, ratio)
    places = rng.integers(0, len(ids), count, endpoint=True)
    return np.insert(ids, places, _random_tokens(vocabulary, count, rng))


def swap(ids: Ids, ratio: float, rng: np.random.Generator, vocabulary: Ids) -> Ids:
    """Return the ids with pairs exchanged, neighbours or not; `vocabulary` is not used.

    A share `ratio` of the tokens moves: 10 % of 100 tokens are 5 exchanges.
    """
    check_ratio(ratio)
    pairs = min(round(len(ids) * ratio / 2), len(ids) // 2)
    first, second = rng.permutation(len(ids))[: 2 * pairs].reshape(2, pairs)
    result = ids.copy()
    result[first], result[second] = ids[second], ids[first]
    return result


def substitute(ids: Ids, ratio: float, rng: np.random.Generator, vocabulary: Ids) -> Ids:
    """Return the ids with random tokens in place of a share of them."""
    places = random_positions(ids, ratio, rng)
    result = ids.copy()
    result[places] = _random_tokens(vocabulary, len(places), rng)
    return result


TokenAttack = Callable[[Ids, float, np.random.Generator, Ids], Ids]

TOKEN_ATTACKS: dict[str, TokenAttack] = {
    "delete": delete,
    "insert": insert,
    "swap": swap,
    "substitute": substitute,
}


def token_edit(
    name: str, ratio: float, tokenizer: Tokenizer
) -> Callable[[str, np.random.Generator], str]:
    """Return the edit of that name for texts: tokens are edited, and decoded again.

    >>> from dllmark import load_tokenizer
    >>> edit = token_edit("delete", 1.0, load_tokenizer("embedded"))
    >>> edit("All of it.", np.random.default_rng(0))
    ''
    """
    edit, vocabulary = TOKEN_ATTACKS[name], ordinary(tokenizer)

    def change(text: str, rng: np.random.Generator) -> str:
        return tokenizer.decode(edit(tokenizer.encode(text), ratio, rng, vocabulary))

    return change


def ordinary(tokenizer: Tokenizer) -> Ids:
    """Return the ids of the tokens that are scored: all but special ones and ids without a token.

    >>> from dllmark import load_tokenizer
    >>> len(ordinary(load_tokenizer("embedded")))
    16375
    """
    return np.flatnonzero(tokenizer.scored)


def check_ratio(ratio: float) -> None:
    """Raise `InputError` unless a ratio is a share."""
    if not 0 <= ratio <= 1:
        raise InputError(f"the ratio is a share of the text, from 0 to 1; got {ratio}")


def _count(ids: Ids, ratio: float) -> int:
    check_ratio(ratio)
    return round(len(ids) * ratio)


def random_positions(ids: Ids, ratio: float, rng: np.random.Generator) -> Ids:
    """Return the positions of a random share of the ids.

    >>> len(random_positions(np.arange(10), 0.3, np.random.default_rng(0)))
    3
    """
    return rng.permutation(len(ids))[: _count(ids, ratio)]


def _random_tokens(vocabulary: Ids, count: int, rng: np.random.Generator) -> Ids:
    return vocabulary[rng.integers(0, len(vocabulary), count)]
