"""SipHash in a GPU kernel, and the key that it reads.

It lies in the device's memory: Triton keeps what it compiles on disk and must not know the key.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from dllmark.relation.key import WatermarkKey
from dllmark.relation.prf import MESSAGE_LENGTH_WORD, first_state, threshold_of

_LENGTH_WORD = tl.constexpr(MESSAGE_LENGTH_WORD)


class DeviceKey:
    """A key in a device's memory, as the kernels read it; like `Secret`, it does not print.

    >>> DeviceKey(key, "cpu")
    <secret>
    """

    __slots__ = ("_words",)

    def __init__(self, key: WatermarkKey, device: torch.device | str) -> None:
        try:
            self._words = _words(key).to(device)
        except Exception as error:
            raise error.with_traceback(None) from None  # the frames below hold the secret

    def reveal(self) -> Tensor:
        """Return SipHash's first state under the key, and the threshold: five words."""
        return self._words

    def __repr__(self) -> str:
        return "<secret>"


def _words(key: WatermarkKey) -> Tensor:
    words = [*first_state(key.secret.reveal()), threshold_of(key.gamma)]
    return torch.from_numpy(np.array(words, dtype=np.uint64).view(np.int64))


@triton.jit
def _rotate(word, bits: tl.constexpr):
    return (word << bits) | (word >> (64 - bits))


@triton.jit
def _round(v0, v1, v2, v3):
    v0 += v1
    v2 += v3
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v0 = _rotate(v0, 32) + v3
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    return v0, v1, _rotate(v2, 32), v3


@triton.jit
def siphash(v0, v1, v2, v3, message):
    """Return SipHash-2-4 of 64-bit messages, from the key's first state; all are unsigned."""
    v3 = v3 ^ message
    for _ in tl.static_range(2):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 = v0 ^ message
    v3 = v3 ^ _LENGTH_WORD
    for _ in tl.static_range(2):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 = v0 ^ _LENGTH_WORD
    v2 = v2 ^ 0xFF
    for _ in tl.static_range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@triton.jit
def word(words, number: tl.constexpr):
    """Return a word of a `DeviceKey`."""
    return tl.load(words + number).to(tl.uint64, bitcast=True)
