"""Payloads: what a mark can say, and the derived key that says it.

A payload is a number of some bits, or a text from a list. A text that carries it is marked with the
key derived by its label, so it is the same mark as any other, at the same cost in quality.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dllmark.errors import InputError
from dllmark.files import read_input
from dllmark.relation.key import (
    SECRET_BYTES,
    WatermarkKey,
    check_label,
    derived_secrets,
    secret_id,
)
from dllmark.relation.prf import Secrets

MOST_BITS = 20
LONGEST_NUMBER = 100
"""Digits that are read as a number: Python refuses thousands of them."""

Payload = int | str


class Payloads:
    """The payloads that texts may carry: the numbers of some bits, or the texts of a list.

    >>> Payloads(16).key(key, 4711).label
    'payload 4711 of 16 bits'
    >>> len(Payloads(["acme", "globex"]))
    2
    """

    def __init__(self, space: int | Sequence[str]) -> None:
        self.bits = space if isinstance(space, int) else None
        if isinstance(space, int):
            if not 1 <= space <= MOST_BITS:
                raise InputError(f"a payload has 1 to {MOST_BITS} bits; got {space}")
            self._size = 1 << space
            return
        if isinstance(space, str):
            raise InputError("payloads are a list of texts: put a single one in [ ]")
        self.texts = [_checked(text, number) for number, text in enumerate(space, 1)]
        self._size = len(self.texts)
        if not 1 <= self._size <= 1 << MOST_BITS:
            raise InputError(
                f"a list of payloads has 1 to {1 << MOST_BITS:,} texts; got {self._size:,}"
            )
        if len(self._numbers) < self._size:
            first = next(
                text for number, text in enumerate(self.texts) if self._numbers[text] != number
            )
            raise InputError(f"the payload {first!r} stands twice in the list: remove one")

    @classmethod
    def read(cls, path: str | Path) -> Payloads:
        """Return the payloads of a file with one on each line.

        >>> Payloads.read("customers.txt")  # doctest: +SKIP
        """
        lines = read_input(str(path)).splitlines()
        try:
            return cls(lines)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> Payload:
        return number if self.bits else self.texts[number]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self.texts)}

    def parse(self, given: str) -> Payload:
        """Return a payload as it is given on a command line; raise where it is none of these.

        >>> Payloads(16).parse("4711")
        4711
        """
        if self.bits is None:
            self.label(given)
            return check_label(given)
        if not (given.isascii() and given.isdigit() and len(given) <= LONGEST_NUMBER):
            raise InputError(
                f"a payload of {self.bits} bits is a whole number; got {given[:40]!r}. "
                "For texts, give the list they are from"
            )
        self.label(int(given))
        return int(given)

    def label(self, payload: Payload) -> str:
        """Return the label that a payload's key is derived by; raise where it is none of these."""
        if self.bits is None:
            label = check_label(payload)  # type: ignore[arg-type]  # it says what is no string
            if label not in self._numbers:
                raise InputError(
                    f"the payload {label!r} is not in the list: add it there, or choose one of its "
                    f"{len(self):,}"
                )
            return label
        if isinstance(payload, bool) or not isinstance(payload, int):
            raise InputError(f"a payload of {self.bits} bits is a whole number; got {payload!r}")
        if not 0 <= payload < len(self):
            raise InputError(
                f"a payload of {self.bits} bits lies between 0 and {len(self) - 1:,}; "
                f"got {payload:,}"
            )
        return _number_label(payload, self.bits)

    def key(self, master: WatermarkKey, payload: Payload) -> WatermarkKey:
        """Return the key that marks texts with a payload.

        >>> Payloads(["acme"]).key(key, "acme") == key.derive("acme")
        True
        """
        return master.derive(self.label(payload))

    def summary(self) -> dict[str, Any]:
        """Return what decides which payloads these are, in a few JSON values.

        >>> Payloads(16).summary()
        {'bits': 16}
        """
        if self.bits:
            return {"bits": self.bits}
        digest = hashlib.sha256("\n".join(self.texts).encode()).hexdigest()
        return {"texts": len(self), "sha256": digest}

    def secrets(self, master: WatermarkKey) -> Secrets:
        """Return the secrets of all payloads' keys, in order."""
        return Secrets.derived(master, self._labels())

    def key_ids(self, master: WatermarkKey) -> list[str]:
        """Return the ids of all payloads' keys, in order."""
        secrets = derived_secrets(master.secret, self._labels()).reveal()
        return [
            secret_id(secrets[start : start + SECRET_BYTES])
            for start in range(0, len(secrets), SECRET_BYTES)
        ]

    def _labels(self) -> Iterable[str]:
        if self.bits is None:
            return self.texts
        return (_number_label(number, self.bits) for number in range(len(self)))


def _number_label(number: int, bits: int) -> str:
    return f"payload {number} of {bits} bits"


def _checked(text: str, number: int) -> str:
    """Return a text of a list as a label; an error names its line."""
    try:
        return check_label(text)
    except InputError as error:
        raise InputError(f"payload {number} cannot be used: {error}") from None
