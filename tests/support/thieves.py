"""A small language to steal from: 40 words, any of which may follow any other."""

from __future__ import annotations

import numpy as np
from samples import word_ids

from dllmark.relation.greenlist import GreenList
from dllmark.relation.tokenizer import Ids, Tokenizer

WORDS = 40


def language(tokenizer: Tokenizer) -> Ids:
    """Return the tokens of the language."""
    return word_ids(tokenizer)[:WORDS]


def texts_of(
    tokenizer: Tokenizer, texts: int, seed: int, green: GreenList | None = None, length: int = 80
) -> list[Ids]:
    """Return texts of random words; with colours, each word is the greener of two."""
    rng = np.random.default_rng(seed)
    words = language(tokenizer)
    written = rng.choice(words, (texts, length))
    if green is not None:
        for at in range(1, length):
            other = rng.choice(words, texts)
            is_red = ~green.pairs(written[:, at - 1], written[:, at])
            written[is_red, at] = other[is_red]
    return list(written)
