"""Payloads as commands are told them: which there are, and which one a text is to carry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllmark.commands.options import PAYLOAD_BITS
from dllmark.errors import InputError

if TYPE_CHECKING:
    from dllmark.relation.key import WatermarkKey
    from dllmark.relation.payload import Payload, Payloads


@dataclass(frozen=True)
class Carried:
    """A payload that texts are to carry."""

    payloads: Payloads
    payload: Payload

    def key(self, master: WatermarkKey) -> WatermarkKey:
        """Return the key that marks with it."""
        return self.payloads.key(master, self.payload)

    def facts(self, key: WatermarkKey) -> dict[str, Any]:
        """Return what may be known of it: the payload, how long it is, and whose it is."""
        bits = {"payload_bits": self.payloads.bits} if self.payloads.bits else {}
        return {"payload": self.payload, **bits, "master": key.master}


def chosen_payloads(asked: bool, bits: int | None, listed: Path | None) -> Payloads | None:
    """Return the payloads there are, if a command is asked for any."""
    if not asked:
        if bits is not None or listed is not None:
            raise InputError(
                "--payload-bits and --payloads say which payloads there are: give --payload too"
            )
        return None
    return payload_space(bits, listed)


def payload_space(bits: int | None, listed: Path | None) -> Payloads:
    """Return the payloads there are: numbers of some bits, or the texts of a file."""
    from dllmark.relation.payload import Payloads

    if bits is not None and listed is not None:
        raise InputError("give --payload-bits or --payloads, not both")
    if listed is not None:
        return Payloads.read(listed)
    return Payloads(PAYLOAD_BITS if bits is None else bits)


def carried_payload(
    given: str | None, bits: int | None, listed: Path | None, *, marked: bool
) -> Carried | None:
    """Return the payload that texts are to carry, if one is given."""
    payloads = chosen_payloads(given is not None, bits, listed)
    if payloads is None or given is None:
        return None
    if not marked:
        raise InputError(
            "a text without a mark carries no payload: leave out --payload or --no-watermark"
        )
    return Carried(payloads, payloads.parse(given))


def only_master(keys: list[WatermarkKey] | tuple[WatermarkKey, ...]) -> WatermarkKey:
    """Return the one key whose payloads are looked for."""
    if len(keys) != 1:
        raise InputError(
            f"payloads are looked for under one key, and {len(keys)} are given: try one at a time"
        )
    return keys[0]
