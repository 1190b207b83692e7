"""Texts to detect: some whose every pair of words is green under a key, some chosen blindly."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Ids, Tokenizer


@lru_cache
def word_ids(tokenizer: Tokenizer) -> Ids:
    """Return the tokens that are a space and a whole lower-case word of four letters or more."""
    ids = range(tokenizer.vocab_size)
    return np.array([id_ for id_ in ids if re.fullmatch(" [a-z]{4,}", tokenizer.decode([id_]))])


def marked_text(
    key: WatermarkKey, tokenizer: Tokenizer, words: int = 200, seed: int = 0, share: float = 1.0
) -> str:
    """Return random words; a share of them makes a green pair with the one before."""
    random = np.random.default_rng(seed)
    green = HashedGreenList(key, tokenizer.vocab_size)
    chain = [random.choice(word_ids(tokenizer))]
    while len(chain) < words:
        candidates = random.choice(word_ids(tokenizer), 500)
        fits = green.pairs(np.full(500, chain[-1]), candidates) == (random.random() < share)
        chain.append(candidates[fits][0])
    return tokenizer.decode(chain)


def plain_text(tokenizer: Tokenizer, words: int = 200, seed: int = 0) -> str:
    """Return random words, chosen without a look at their colours."""
    random = np.random.default_rng(seed)
    return tokenizer.decode(random.choice(word_ids(tokenizer), words))
