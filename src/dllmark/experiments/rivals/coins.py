"""The keyed randomness of the other schemes, which marking and scoring must agree on.

Each has sub-keys of its own, so that texts of two schemes under one key are independent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import WatermarkKey
from dllmark.relation.prf import Array, pair_message, siphash

MANTISSA = 53
"""The binary digits of a uniform number, as many as a float64 has."""


def token_coins(key: WatermarkKey, label: str, vocab_size: int) -> NDArray[np.bool_]:
    """Return [V]: a keyed coin for each token, which falls True with probability γ.

    >>> coins = token_coins(key, "unigram", 16_384)
    >>> bool(0.48 < coins.mean() < 0.52)
    True
    """
    green = HashedGreenList(_sub_key(key, label), vocab_size)
    coins: NDArray[np.bool_] = green.rows(np.zeros(1, dtype=np.int64))[0]
    return coins


def side_lists(key: WatermarkKey, vocab_size: int) -> tuple[HashedGreenList, HashedGreenList]:
    """Return the green lists of the left and of the right neighbour, under two keys."""
    left, right = (
        HashedGreenList(_sub_key(key, f"lr-dwm {side}"), vocab_size) for side in ("left", "right")
    )
    return left, right


def position_noise(key: WatermarkKey, positions: Array, tokens: Array) -> Any:
    """Return a keyed uniform number in (0, 1) for each pair of a position and a token.

    >>> noise = position_noise(key, np.array([3]), np.arange(4))
    >>> noise.shape, bool(((0 < noise) & (noise < 1)).all())
    ((4,), True)
    """
    sub_key = _sub_key(key, "gumbel")
    if isinstance(positions, np.ndarray) and isinstance(tokens, np.ndarray):
        message = pair_message(positions.astype(np.uint64), tokens.astype(np.uint64))
        return ((siphash(sub_key, message) >> np.uint64(64 - MANTISSA)) + 0.5) / 2**MANTISSA
    hashed = siphash(sub_key, pair_message(positions, tokens))
    # a tensor's shift copies the sign, which the mask removes
    digits = (hashed >> (64 - MANTISSA)) & ((1 << MANTISSA) - 1)
    return (digits.double() + 0.5) / 2**MANTISSA


def _sub_key(key: WatermarkKey, label: str) -> WatermarkKey:
    return key.derive(f"dllmark reproduce rivals: {label}")
