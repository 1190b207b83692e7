"""SipHash-2-4 of a token pair: the only randomness of the watermark.

The hash uses operators alone, so the same lines run on numpy arrays (uint64) and on torch tensors
of any device (int64, whose additions wrap the same way) and give the same 64 bits. SipHash is a
keyed pseudorandom function (Aumasson and Bernstein, 2012): without the key, a pair's colour
cannot be told from a coin toss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dllmark.relation.key import Secret, WatermarkKey, derived_secrets

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", NDArray[Any], "torch.Tensor")

INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
"""SipHash's four initial words, "somepseudorandomlygeneratedbytes"."""

MESSAGE_LENGTH_WORD = 8 << 56
"""SipHash's closing block of an eight-byte message: its length in the top byte, and no tail."""


def siphash(key: WatermarkKey, message: Array) -> Array:
    """Return SipHash-2-4 of each 64-bit message as an array of the same kind and shape.

    >>> import numpy as np
    >>> siphash(key, np.array([5 << 32 | 7], dtype=np.uint64)).shape
    (1,)
    """
    try:
        state = [_word(word, message) for word in first_state(key.secret.reveal())]
        return _siphash(state, message)
    except Exception as error:
        raise error.with_traceback(None) from None  # the frames below hold the secret


class Secrets:
    """The secrets of many keys as the hash takes them, 64-bit words [K, 2]; they do not print.

    `which` selects some of them, as it does of an array.

    >>> secrets = Secrets.of([key, other_key])
    >>> len(secrets), len(secrets[:1]), secrets
    (2, 1, <2 secrets>)
    """

    __slots__ = ("_words",)

    def __init__(self, words: Any) -> None:
        self._words = words

    @classmethod
    def of(cls, keys: Iterable[WatermarkKey]) -> Secrets:
        """Return the secrets of some keys."""
        return cls._joined(Secret(b"".join(key.secret.reveal() for key in keys)))

    @classmethod
    def derived(cls, master: WatermarkKey, labels: Iterable[str]) -> Secrets:
        """Return the secrets of a key's sub-keys, whose labels are checked."""
        return cls._joined(derived_secrets(master.secret, labels))

    @classmethod
    def _joined(cls, secrets: Secret) -> Secrets:
        words = np.frombuffer(secrets.reveal(), dtype="<u8")
        return cls(words.astype(np.uint64).reshape(-1, 2))

    def placed(self, place: Callable[[NDArray[np.int64]], Any]) -> Secrets:
        """Return them where a function puts their words, such as on a GPU.

        >>> import torch
        >>> Secrets.of([key]).placed(torch.from_numpy)
        <1 secrets>
        """
        return Secrets(place(self._words.view(np.int64)))

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, which: Any) -> Secrets:
        return Secrets(self._words[which])

    def __repr__(self) -> str:
        return f"<{len(self)} secrets>"


def siphash_each(secrets: Secrets, message: Array) -> Array:
    """Return [K, N]: SipHash-2-4 of N messages under each of K secrets.

    >>> siphash_each(Secrets.of([key, other_key]), np.arange(3, dtype=np.uint64)).shape
    (2, 3)
    """
    try:
        hashed: Array = _siphash(_first_states(secrets._words), message)
        return hashed
    except Exception as error:
        raise error.with_traceback(None) from None  # the frames below hold the secrets


def _first_states(words: Any) -> list[Any]:
    """Return SipHash's four state words under each of K secrets, [K, 1] each."""
    halves = [words[:, :1], words[:, 1:]] * 2
    return [half ^ _word(word, words) for half, word in zip(halves, INITIAL, strict=True)]


def first_state(secret: bytes) -> list[int]:
    """Return SipHash's four state words under a key, before any message; they are as secret."""
    halves = [int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")] * 2
    return [a ^ b for a, b in zip(INITIAL, halves, strict=True)]


def _siphash(first: Sequence[int | Array], message: Array) -> Array:
    """Hash messages from a key's first state: four words, or [K, 1] each for K keys."""
    zero = message ^ message
    state: list[Any] = [zero ^ word for word in first]
    for block, rounds in ((message, 2), (zero ^ MESSAGE_LENGTH_WORD, 2)):
        state[3] ^= block
        for _ in range(rounds):
            _round(*state)
        state[0] ^= block
    state[2] ^= 0xFF
    for _ in range(4):
        _round(*state)
    hashed: Array = state[0] ^ state[1] ^ state[2] ^ state[3]
    return hashed


def pair_message(left: Array, right: Array) -> Array:
    """Return the message that stands for a pair: `left << 32 | right`."""
    message: Array = (left << 32) | right
    return message


def threshold_of(gamma: float) -> int:
    """Return floor(γ · 2^64), exactly: a hash below it is green."""
    return int(Fraction(gamma) * 2**64)


def below_threshold(hashes: Array, gamma: float) -> Any:
    """Return where the unsigned hash is below the threshold of γ."""
    threshold = threshold_of(gamma)
    if isinstance(hashes, np.ndarray):
        return hashes < np.uint64(threshold)
    sign = _word(1 << 63, hashes)
    return (hashes ^ sign) < _word(threshold ^ (1 << 63), hashes)


def _round(v0: Array, v1: Array, v2: Array, v3: Array) -> None:
    """Mix the four state words in place."""
    v0 += v1
    v2 += v3
    _rotate(v1, 13)
    _rotate(v3, 16)
    v1 ^= v0
    v3 ^= v2
    _rotate(v0, 32)
    v2 += v1
    v0 += v3
    _rotate(v1, 17)
    _rotate(v3, 21)
    v1 ^= v2
    v3 ^= v0
    _rotate(v2, 32)


def _rotate(word: Array, bits: int) -> None:
    """Rotate left in place; a tensor's shift copies the sign, which the mask removes."""
    high = word >> (64 - bits)
    if not isinstance(word, np.ndarray):
        high &= (1 << bits) - 1
    word <<= bits
    word |= high


def _word(value: int, like: Array) -> int:
    """Return an unsigned word as the integer that the array's type holds with the same bits."""
    unsigned = isinstance(like, np.ndarray)
    return value if unsigned or value < 1 << 63 else value - (1 << 64)
