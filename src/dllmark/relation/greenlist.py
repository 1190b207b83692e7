"""Which token pairs are green, told in three ways.

`pairs(left, right)` gives the colour of given pairs, `rows(left)` the forward green list of a left
token (which tokens may follow it), `columns(right)` the backward green list of a right token (which
tokens may precede it). `HashedGreenList` computes every answer from the key; `BitMatrix` looks it
up in the paper's precomputed matrix; `ReferenceBitmap` reads the matrix files of the reference
implementation. All three follow one protocol, `GreenList`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dllmark.errors import InputError
from dllmark.files import atomic_write
from dllmark.relation.key import ANY_TOKENIZER, Identity, WatermarkKey
from dllmark.relation.prf import (
    Array,
    Secrets,
    below_threshold,
    pair_message,
    siphash,
    siphash_each,
)

Bools = NDArray[np.bool_]
Tokens = NDArray[Any]

BLOCK = 8192
"""Pairs hashed at a time: the working set of one block stays in a core's cache."""


@runtime_checkable
class GreenList(Protocol):
    """A keyed colouring of token pairs, over a vocabulary of `vocab_size` tokens.

    `takes_tensors` says whether it also takes torch tensors, and answers on their device; all take
    numpy arrays.
    """

    identity: Identity
    vocab_size: int
    takes_tensors: bool

    def pairs(self, left: Tokens, right: Tokens) -> Bools:
        """Return the colour of each pair (True is green)."""

    def rows(self, left: Tokens) -> Bools:
        """Return [N, V]: which tokens are green after each left token."""

    def columns(self, right: Tokens) -> Bools:
        """Return [N, V]: which tokens are green before each right token."""


class HashedGreenList:
    """The default: every colour comes from the key when it is needed; nothing is stored.

    >>> green = HashedGreenList(key, vocab_size=16_384)
    >>> bool(green.pairs(np.array([3]), np.array([5]))[0]) == bool(green.rows(np.array([3]))[0, 5])
    True
    """

    takes_tensors = True

    def __init__(self, key: WatermarkKey, vocab_size: int) -> None:
        self.identity = key.identity
        self.vocab_size = vocab_size
        self._key = key

    def pairs(self, left: Array, right: Array) -> Any:
        """Return the colour of each pair (True is green); the two sides broadcast."""
        if not isinstance(left, np.ndarray) or not isinstance(right, np.ndarray):
            message = pair_message(left, right)
            return below_threshold(siphash(self._key, message), self._key.gamma)
        message = pair_message(left.astype(np.uint64), right.astype(np.uint64))
        flat = message.reshape(-1)
        green = np.empty(flat.shape, dtype=np.bool_)
        for start in range(0, len(flat), BLOCK):
            block = slice(start, start + BLOCK)
            green[block] = below_threshold(siphash(self._key, flat[block]), self._key.gamma)
        return green.reshape(message.shape)

    def rows(self, left: Array) -> Any:
        """Return [N, V]: which tokens are green after each left token."""
        return self.pairs(left[:, None], self._vocabulary(left)[None, :])

    def columns(self, right: Array) -> Any:
        """Return [N, V]: which tokens are green before each right token."""
        return self.pairs(self._vocabulary(right)[None, :], right[:, None])

    def _vocabulary(self, like: Array) -> Any:
        """Return 0 … V-1 as an array of the same kind and on the same device."""
        if isinstance(like, np.ndarray):
            return np.arange(self.vocab_size)
        return like.new_ones(self.vocab_size).cumsum(0) - 1


def colours(lists: Sequence[GreenList], left: Tokens, right: Tokens) -> Iterator[Bools]:
    """Yield the colour of each pair under one green list after the other.

    Hashed lists of one γ are computed together, as many at a time as make a block.

    >>> lists = [HashedGreenList(one, vocab_size=16_384) for one in (key, other_key)]
    >>> len(list(colours(lists, np.array([3]), np.array([5]))))
    2
    """
    together = BLOCK // max(1, len(left))

    def kind(one: GreenList) -> float | None:
        return one.identity.gamma if isinstance(one, HashedGreenList) else None

    for gamma, group in groupby(lists, kind):
        if gamma is None or together < 2:
            yield from (one.pairs(left, right) for one in group)
        else:
            message = pair_message(left.astype(np.uint64), right.astype(np.uint64))
            secrets = Secrets.of(one._key for one in group if isinstance(one, HashedGreenList))
            for start in range(0, len(secrets), together):
                hashes = siphash_each(secrets[start : start + together], message)
                yield from below_threshold(hashes, gamma)


def green_counts(
    secrets: Secrets, message: Array, gamma: float, block: int = BLOCK
) -> NDArray[np.int64]:
    """Return how many messages (pairs of tokens) are green under each of many secrets.

    Messages may be a tensor where the secrets are: the work is then done on its device.

    >>> green_counts(Secrets.of([key, other_key]), np.arange(4, dtype=np.uint64), 0.5).shape
    (2,)
    """
    counts = np.zeros(len(secrets), dtype=np.int64)
    together = max(1, block // max(1, len(message)))
    for start in range(0, len(secrets) if len(message) else 0, together):
        some = slice(start, start + together)
        counted = below_threshold(siphash_each(secrets[some], message), gamma).sum(1)
        counts[some] = counted if isinstance(counted, np.ndarray) else counted.cpu()
    return counts


MAGIC = b"dllmark bit matrix 1\n"
PAGE = 4096
PAGE_ROWS, PAGE_BYTES = 256, 16


class BitMatrix:
    """The paper's V×V matrix M, one bit a pair, memory-mapped from a file of V²/8 bytes.

    The bits lie in pages of 256 rows × 128 columns. A row of M then touches V/128 pages and a
    column V/256, where a row-major file would touch V of them for a column. At V = 126,464 the
    file has 2.0 GB.

    >>> matrix = BitMatrix.build(HashedGreenList(key, vocab_size=1000), "m.bits")  # doctest: +SKIP
    """

    takes_tensors = False

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            with path.open("rb") as file:
                header = file.read(PAGE)
        except OSError as error:
            raise InputError(f"cannot read the bit matrix {path}: {error.strerror}") from None
        if not header.startswith(MAGIC):
            raise InputError(
                f"{path} is not a dllmark bit matrix; a file of the reference implementation "
                "is opened with ReferenceBitmap"
            )
        try:
            record = json.loads(header[len(MAGIC) :])
            self.vocab_size = int(record.pop("vocab_size"))
            self.identity = Identity(**record)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InputError(f"the bit matrix {path} is damaged: build it again") from None
        shape = self._shape(self.vocab_size)
        if path.stat().st_size != PAGE + np.prod(shape):
            raise InputError(f"the bit matrix {path} is cut short: build it again")
        self._pages = np.memmap(path, dtype=np.uint8, mode="r", offset=PAGE, shape=shape)

    @staticmethod
    def _shape(vocab_size: int) -> tuple[int, int, int, int]:
        bands = -(-vocab_size // PAGE_ROWS)
        return bands, -(-vocab_size // (8 * PAGE_BYTES)), PAGE_ROWS, PAGE_BYTES

    @classmethod
    def build(cls, source: GreenList, path: str | Path, *, progress: bool = True) -> BitMatrix:
        """Write any green list as a bit matrix, with a progress bar, and open it.

        >>> BitMatrix.build(ReferenceBitmap("bitmap_v126464_r50_k7.bin"), "m")  # doctest: +SKIP
        """
        from rich.progress import track

        bands, across, _, _ = cls._shape(source.vocab_size)
        record = {"vocab_size": source.vocab_size, **asdict(source.identity)}
        with atomic_write(Path(path), private=True) as file:  # who has it can detect and forge
            file.write((MAGIC + json.dumps(record).encode()).ljust(PAGE))
            for band in track(range(bands), "building the bit matrix", disable=not progress):
                end = min((band + 1) * PAGE_ROWS, source.vocab_size)
                bits = np.packbits(source.rows(np.arange(band * PAGE_ROWS, end)), axis=1)
                page = np.zeros((PAGE_ROWS, across * PAGE_BYTES), dtype=np.uint8)
                page[: len(bits), : bits.shape[1]] = bits
                tiles = page.reshape(PAGE_ROWS, across, PAGE_BYTES).transpose(1, 0, 2)
                file.write(tiles.tobytes())
        return cls(path)

    def pairs(self, left: Tokens, right: Tokens) -> Bools:
        """Return the colour of each pair (True is green)."""
        column = right // 8
        bytes_ = self._pages[
            left // PAGE_ROWS, column // PAGE_BYTES, left % PAGE_ROWS, column % PAGE_BYTES
        ]
        return _bit(bytes_, right)

    def rows(self, left: Tokens) -> Bools:
        """Return [N, V]: which tokens are green after each left token."""
        packed = self._pages[left // PAGE_ROWS, :, left % PAGE_ROWS, :]
        width = packed.shape[1] * PAGE_BYTES  # not -1, which numpy cannot tell of no tokens
        bits = np.unpackbits(packed.reshape(len(left), width), axis=1, count=self.vocab_size)
        return bits.view(np.bool_)

    def columns(self, right: Tokens) -> Bools:
        """Return [N, V]: which tokens are green before each right token."""
        byte = right // 8
        packed = self._pages[:, byte // PAGE_BYTES, :, byte % PAGE_BYTES]
        width = packed.shape[1] * PAGE_ROWS
        return _bit(packed.reshape(len(right), width)[:, : self.vocab_size], right[:, None])


REFERENCE_NAME = re.compile(r"bitmap_v(\d+)_r(\d+)_k(-?\d+)\.bin")


class ReferenceBitmap:
    """A matrix file of the DMark authors' implementation, read where it lies.

    With it, texts marked by that implementation are detected:
    `Detector(ReferenceBitmap(path), tokenizer)`. Its rows are contiguous and its columns are not:
    to generate with it, convert it once with `BitMatrix.build`.
    """

    takes_tensors = False

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        name = REFERENCE_NAME.fullmatch(path.name)
        if name is None:
            raise InputError(
                f"{path.name} does not say its sizes: the reference implementation names its files "
                "bitmap_v{vocabulary}_r{100 * gamma}_k{key}.bin"
            )
        self.vocab_size = int(name[1])
        try:
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the bitmap {path}: {error}") from None
        if len(self._bytes) != -(-(self.vocab_size**2) // 8):
            raise InputError(f"{path} is cut short: its name promises {self.vocab_size}² bits")
        digest = hashlib.sha256(b"dllmark reference bitmap\0" + self._bytes[:PAGE].tobytes())
        self.identity = Identity(
            "reference", digest.hexdigest()[:16], int(name[2]) / 100, ANY_TOKENIZER
        )

    def pairs(self, left: Tokens, right: Tokens) -> Bools:
        """Return the colour of each pair (True is green); the two sides broadcast."""
        bit = left.astype(np.int64) * self.vocab_size + right
        return _bit(self._bytes[bit // 8], bit)

    def rows(self, left: Tokens) -> Bools:
        """Return [N, V]: which tokens are green after each left token."""
        return self.pairs(left[:, None], np.arange(self.vocab_size)[None, :])

    def columns(self, right: Tokens) -> Bools:
        """Return [N, V]: which tokens are green before each right token, in V scattered reads."""
        return self.pairs(np.arange(self.vocab_size)[None, :], right[:, None])


def _bit(bytes_: NDArray[np.uint8], index: Tokens) -> Bools:
    """Return one bit of each byte, counted from the highest as `numpy.packbits` packs them."""
    shift = (7 - index % 8).astype(np.uint8)
    return ((bytes_ >> shift) & 1).astype(np.bool_)
