"""What a key ring knows of its keys: public facts only, and from them which key marks now."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

from dllmark.errors import DllmarkError, KeyRingError
from dllmark.relation.key import TokenizerId, check_gamma, check_label

FORMAT = "dllmark-ring-1"

_ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class RingKey:
    """The public facts of a key in a ring.

    A key with a `master` is derived: it has no file, its label and its master give its secret.
    """

    id: str
    label: str
    gamma: float
    tokenizer: TokenizerId
    created: str
    begins: datetime
    retired: datetime | None = None
    master: str | None = None

    def state(self, now: datetime) -> Literal["active", "later", "retired"]:
        """Return whether it may mark; `later` means that it has yet to begin."""
        if self.retired is not None:
            return "retired"
        return "active" if self.begins <= now else "later"

    def is_under(self, label: str) -> bool:
        """Return whether its label is this one, or one of those below it.

        `customer-17` has `customer-17/2026-11` below it, and the `customer-17#2` it was rotated to.
        """
        return self.label == label or self.label.startswith((f"{label}/", f"{label}#"))

    @property
    def stem(self) -> str:
        """Its label without the number that rotation gave it: `blog` of `blog#2`."""
        stem, _, number = self.label.rpartition("#")
        return stem if stem and number.isascii() and number.isdigit() else self.label

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "id": self.id,
            "label": self.label,
            "gamma": self.gamma,
            "tokenizer": vars(self.tokenizer),
            "created": self.created,
            "from": self.begins.isoformat(),
            "retired": self.retired.isoformat() if self.retired else None,
            "master": self.master,
        }


@dataclass(frozen=True)
class RingRecord:
    """The keys of a ring, each id and each label once; immutable, so that threads may share it."""

    keys: tuple[RingKey, ...] = ()
    rotate_after: int | None = None

    def __post_init__(self) -> None:
        ids: dict[str, RingKey] = {}
        labels: set[str] = set()
        for key in self.keys:
            if key.id in ids:
                raise KeyRingError(
                    f"key {key.id} is in the ring already, as {ids[key.id].label!r}: a ring holds "
                    "a secret once"
                )
            if key.label in labels:
                raise KeyRingError(f"the label {key.label!r} is used already: choose another")
            ids[key.id] = key
            labels.add(key.label)
        for key in self.keys:
            if key.label in ids:
                raise KeyRingError(f"the label {key.label!r} is the id of a key: choose another")
            if key.master is not None and (key.master not in ids or ids[key.master].master):
                raise KeyRingError(f"the ring has no master {key.master} for {key.label!r}")

    def find(self, label: str) -> RingKey:
        """Return the key of a label or of an id."""
        for key in self.keys:
            if label in (key.label, key.id):
                return key
        raise KeyRingError(f"the ring has no key {label!r}: `dllmark keys list` shows those it has")

    def only_master(self) -> RingKey:
        """Return the one key that is not derived."""
        masters = [key for key in self.keys if key.master is None]
        if not masters:
            raise KeyRingError("the ring is empty: make a key with `dllmark keys new`")
        if len(masters) > 1:
            names = ", ".join(repr(key.label) for key in masters[:5])
            raise KeyRingError(f"the ring has {len(masters)} masters ({names}): say which one")
        return masters[0]

    def current(
        self, now: datetime, label: str | None = None, fingerprint: str | None = None
    ) -> RingKey:
        """Return the key that marks now: of the active ones that which began last.

        Of two that began together it is the one that was added last. `label` chooses among the
        keys under it, `fingerprint` among those for a tokenizer.
        """
        among = [
            key
            for key in self.keys
            if (label is None or key.is_under(label))
            and fingerprint in (None, key.tokenizer.fingerprint)
        ]
        if not among:
            raise KeyRingError(
                f"the ring has no key {'' if label is None else f'under {label!r} '}"
                f"{'' if fingerprint is None else 'for the tokenizer of this model '}".rstrip()
                + ": make one with `dllmark keys new` or `dllmark keys derive`"
            )
        active = [key for key in among if key.state(now) == "active"]
        if active:
            return max(reversed(active), key=lambda key: key.begins)
        later = [key.begins for key in among if key.state(now) == "later"]
        reason = f"the next one begins {shown(min(later))}" if later else "all are retired"
        raise KeyRingError(
            f"no key of the ring may mark now, {shown(now)}: {reason}. Look at the clock, or add "
            "one with `dllmark keys derive`. Nothing is written without a mark"
        )

    def with_keys(self, *keys: RingKey) -> RingRecord:
        """Return the record with more keys."""
        return replace(self, keys=(*self.keys, *keys))

    def changed(self, key: RingKey, **changes: Any) -> RingRecord:
        """Return the record with other facts of a key."""
        keys = tuple(replace(one, **changes) if one == key else one for one in self.keys)
        return replace(self, keys=keys)

    def next_of(self, key: RingKey, now: datetime) -> tuple[str, datetime]:
        """Return the label that a key is rotated to, and when that begins: not before the key did.

        `blog` is rotated to `blog#2`, and that to `blog#3`.
        """
        number = int(key.label.removeprefix(f"{key.stem}#")) if key.stem != key.label else 1
        label = f"{key.stem}#{number + 1}"
        return label, max(now, key.begins)

    def to_bytes(self) -> bytes:
        """Return the record's file; a derived key shares γ and tokenizer with its master."""
        keys = [key.to_dict() for key in self.keys]
        for key in keys:
            if key["master"]:
                del key["gamma"], key["tokenizer"]
        lines = ",\n".join(json.dumps(key) for key in keys)
        head = f'"format": {json.dumps(FORMAT)}, "rotate_after": {json.dumps(self.rotate_after)}'
        return f'{{{head}, "keys": [\n{lines}\n]}}\n'.encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> RingRecord:
        """Read a record's file, and raise `KeyRingError` for anything else."""
        try:
            record = json.loads(content)
            if record["format"] != FORMAT:
                raise KeyRingError(
                    f"it is of another version: this one reads {FORMAT!r}. Use the version of "
                    "dllmark that wrote it"
                )
            after = record["rotate_after"]
            if after is not None:
                check_rotation(after)
            return cls(tuple(_parse_keys(record["keys"])), after)
        except KeyRingError:
            raise
        except (DllmarkError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise KeyRingError("it is cut short or was changed: restore it from a backup") from None


def _parse_keys(records: list[dict[str, Any]]) -> Iterable[RingKey]:
    masters: dict[str, dict[str, Any]] = {}
    for record in records:
        if record["master"] is None:
            masters[record["id"]] = record
    for record in records:
        facts = record if record["master"] is None else masters[record["master"]]
        name, fingerprint = facts["tokenizer"]["name"], facts["tokenizer"]["fingerprint"]
        strings = (record["id"], record["created"], name, fingerprint)
        if not all(isinstance(one, str) for one in strings) or not _ID.fullmatch(record["id"]):
            raise ValueError
        gamma = float(facts["gamma"])
        check_gamma(gamma)
        yield RingKey(
            record["id"],
            check_label(record["label"]),
            gamma,
            TokenizerId(name, fingerprint),
            record["created"],
            parse_date(record["from"]),
            None if record["retired"] is None else parse_date(record["retired"]),
            record["master"],
        )


def check_rotation(after: Any) -> None:
    """Raise unless this is a number of texts."""
    if type(after) is not int or after < 1:
        raise KeyRingError("a key is rotated after 1 text at least")


def parse_date(text: str) -> datetime:
    """Return a day or a moment, in UTC where no other zone is named.

    >>> parse_date("2026-12-01").isoformat()
    '2026-12-01T00:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        return moment.astimezone(timezone.utc)
    except (ValueError, TypeError, OverflowError):
        raise KeyRingError(
            "a date is written 2026-12-01, or with the time as 2026-12-01T08:00:00+00:00"
        ) from None


def shown(moment: datetime) -> str:
    """Return a moment as people read it.

    >>> shown(parse_date("2026-12-01"))
    '2026-12-01 00:00 UTC'
    """
    return f"{moment:%Y-%m-%d %H:%M} UTC"
