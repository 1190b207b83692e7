"""The watermark's key: 128 secret bits, and everything detection must agree on, in one file.

A key file holds the secret together with the green ratio and the tokenizer it belongs to, so that a
text can never be scored with the wrong ones. The secret itself never prints.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any

from dllmark.errors import DllmarkError, InputError, KeyFileError, MismatchError, require
from dllmark.files import atomic_write, others_can_read
from dllmark.relation.sealed import seal, unseal

SCHEME = "dllmark-1"
"""Names the relation (`prf.py`) and the scoring rules; changes when either does."""

ANY_TOKENIZER = "any"
"""Stands for a tokenizer's fingerprint where a green list does not know its tokenizer."""

FORMAT = "dllmark-key-1"
SEALED_FORMAT = "dllmark-sealed-key-1"
SECRET_BYTES = 16
LOOKS_SECRET = re.compile(r'[{}"\n]|\b[0-9a-fA-F]{32}\b')
"""What stands in the content of a key file, or is a secret in letters, and hardly in a path."""
LONGEST_NOTE = 10_000
LONGEST_LABEL = 200

DERIVE = b"dllmark derive 1"
"""Separates the hash that derives keys from any other use of the secret."""


class Secret:
    """Bytes that do not print: `repr`, `str`, logs and tracebacks show `<secret>`."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the bytes; call it only where they are used."""
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(hashlib.sha256(self._value).digest())


Unlock = Callable[[str], Secret]
"""Returns the passphrase of a file, whose name it is told."""


def passphrase_from_environment(name: str) -> Secret:
    """Return the passphrase that DLLMARK_PASSPHRASE holds."""
    passphrase = os.environ.get("DLLMARK_PASSPHRASE")
    if not passphrase:
        raise KeyFileError(f"{name} is locked with a passphrase: put it in DLLMARK_PASSPHRASE")
    return Secret(passphrase.encode(errors="surrogateescape"))


@dataclass(frozen=True)
class TokenizerId:
    """Which tokenizer a key belongs to: where to find it, and what it must be."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Identity:
    """What a text and a key must share for a score to mean anything.

    It holds nothing secret and is stored beside generated text.
    """

    scheme: str
    key_id: str
    gamma: float
    tokenizer: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)

    def check_tokenizer(self, fingerprint: str, name: str) -> None:
        """Raise `MismatchError` unless this is the tokenizer the watermark was made for."""
        if self.tokenizer not in (fingerprint, ANY_TOKENIZER):
            raise MismatchError(
                f"the tokenizer {name} is not the one key {self.key_id} was made for: their "
                "fingerprints differ, so scores would mean nothing"
            )

    def check_claim(self, claimed: dict[str, Any]) -> None:
        """Raise `MismatchError` where a text's stored identity differs from this one."""
        for field, ours in self.to_dict().items():
            theirs = claimed.get(field)
            if theirs != ours:
                raise MismatchError(
                    f"the text was marked with {field} {theirs!r}, but this key has {ours!r}: "
                    "use the key the text was generated with"
                )


@dataclass(frozen=True)
class WatermarkKey:
    """A secret with the green ratio and tokenizer it is used with.

    A derived key also has the label it was derived by, and the id of its master.

    >>> key = WatermarkKey.generate(TokenizerId("embedded", "sha256:..."), gamma=0.25)
    >>> key.gamma, len(key.id)
    (0.25, 16)
    """

    secret: Secret
    gamma: float
    tokenizer: TokenizerId
    created: str = ""
    note: str = ""
    label: str = ""
    master: str = ""

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if len(self.secret.reveal()) != SECRET_BYTES:
            raise KeyFileError(f"a secret has {SECRET_BYTES} bytes; make one with `dllmark keygen`")
        if len(self.note) > LONGEST_NOTE:
            raise KeyFileError(f"a note has at most {LONGEST_NOTE:,} characters")
        if bool(self.label) != bool(self.master):
            raise KeyFileError("a derived key has both a label and the id of its master")

    @classmethod
    def generate(
        cls, tokenizer: TokenizerId, *, gamma: float = 0.5, note: str = ""
    ) -> WatermarkKey:
        """Make a new key from the system's secure random source."""
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(Secret(secrets.token_bytes(SECRET_BYTES)), gamma, tokenizer, created, note)

    @property
    def id(self) -> str:
        """A public name for the secret: a hash from which it cannot be found."""
        return secret_id(self.secret.reveal())

    @property
    def identity(self) -> Identity:
        """The watermark this key makes and recognises."""
        return Identity(SCHEME, self.id, self.gamma, self.tokenizer.fingerprint)

    def derive(self, label: str) -> WatermarkKey:
        """Return the sub-key of a label: the same each time, and another for each label.

        Its secret is a keyed hash of the label. Whoever has a sub-key learns nothing of its master
        or of other sub-keys; whoever has the master can derive them all.

        >>> key.derive("customer-17/2026-11").label
        'customer-17/2026-11'
        """
        label = check_label(label)
        return replace(
            self, secret=derived_secrets(self.secret, [label]), note="", label=label, master=self.id
        )

    def save(self, path: str | Path, passphrase: Secret | None = None) -> None:
        """Write the key file, readable by its owner only; never replaces a file.

        With a passphrase, the secret is sealed.

        >>> key.save("my.key")  # doctest: +SKIP
        """
        if passphrase is not None:
            _require_sealing()
        try:
            with atomic_write(Path(path), private=True, overwrite=False) as file:
                file.write(_serialise(self, passphrase))
        except FileExistsError:
            raise KeyFileError(
                f"{path} exists and a key is never overwritten: choose another name"
            ) from None
        except OSError as error:
            raise KeyFileError(f"cannot write the key to {path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | Path, unlock: Unlock = passphrase_from_environment) -> WatermarkKey:
        """Read a key file, and refuse one that others can read or that was changed.

        `unlock` gives the passphrase of a file that is locked with one.

        >>> key = WatermarkKey.load("my.key")  # doctest: +SKIP
        """
        try:
            return _parse(_read_private(Path(path)), str(path), unlock)
        except KeyFileError as error:
            raise error.with_traceback(None) from None  # the frames below hold the file's content

    @classmethod
    def from_json(
        cls, content: Secret, name: str, unlock: Unlock = passphrase_from_environment
    ) -> WatermarkKey:
        """Read the content of a key file, as a secret store gives it; messages call it `name`."""
        try:
            return _parse(content.reveal(), name, unlock)
        except KeyFileError as error:
            raise error.with_traceback(None) from None


def check_gamma(gamma: float) -> None:
    """Raise unless γ lies strictly between 0 and 1 and leaves both colours a chance."""
    if not (math.isfinite(gamma) and 1 <= int(Fraction(gamma) * 2**64) < 2**64):
        raise DllmarkError(f"gamma is the share of green pairs and lies in (0, 1); got {gamma}")


def check_label(label: str) -> str:
    """Return a label as keys are derived by it; raise `InputError` for one that cannot be used.

    Letters with accents, of which Unicode has two spellings, get the composed one: both look alike.

    >>> check_label("customer-17/2026-11")
    'customer-17/2026-11'
    """
    if not isinstance(label, str):
        raise InputError(f"a label is a string; got {type(label).__name__}")
    label = unicodedata.normalize("NFC", label)
    if not 1 <= len(label) <= LONGEST_LABEL:
        raise InputError(f"a label has 1 to {LONGEST_LABEL} characters; got {len(label)}")
    if not label.isprintable() or label != label.strip():
        raise InputError(
            "a label is one line of printable characters that neither starts nor ends with a "
            f"space; got {label!r}"
        )
    return label


def secret_id(secret: bytes) -> str:
    """Return the public name of a secret."""
    return hashlib.sha256(b"dllmark key id\0" + secret).hexdigest()[:16]


def derived_secrets(secret: Secret, labels: Iterable[str]) -> Secret:
    """Return the secrets of the sub-keys of checked labels, one behind the other.

    Each is BLAKE2b of the label, keyed with the master's secret.
    """
    keyed = hashlib.blake2b(digest_size=SECRET_BYTES, key=secret.reveal(), person=DERIVE)
    derived = []
    for label in labels:
        hashed = keyed.copy()
        hashed.update(label.encode())
        derived.append(hashed.digest())
    return Secret(b"".join(derived))


def refuse_secret(path: Path) -> None:
    """Raise `KeyFileError`, which quotes nothing, for a path that looks like a key itself."""
    if LOOKS_SECRET.search(str(path)):
        raise KeyFileError(
            "a key is given by the path of its file, and what was given looks like the secret "
            "itself: it is not shown. Put it in DLLMARK_KEY, or in a file of your own"
        ) from None


def _read_private(path: Path) -> bytes:
    """Return a key file's bytes if nobody but its owner can read it."""
    try:
        with path.open("rb") as file:
            if others_can_read(file):
                raise KeyFileError(
                    f"{path} can be read by other users, so its secret may be known to them: "
                    f"run `chmod 600 {path}`, and make a new key if others used this machine"
                )
            return file.read(1 << 20)
    except (OSError, ValueError) as error:
        refuse_secret(path)
        if isinstance(error, FileNotFoundError | ValueError):
            raise KeyFileError(
                f"there is no key file {path}: make one with `dllmark keygen`"
            ) from None
        raise KeyFileError(f"cannot read the key file {path}: {error.strerror}") from None


def _serialise(key: WatermarkKey, passphrase: Secret | None) -> bytes:
    """Return a key file's bytes; the frame with the secret is gone before a write can fail."""
    record: dict[str, Any] = {
        "format": FORMAT,
        "scheme": SCHEME,
        "id": key.id,
        "secret": key.secret.reveal().hex(),
        "gamma": float(key.gamma),
        "tokenizer": asdict(key.tokenizer),
        "created": key.created,
        "note": key.note,
    }
    if key.label:
        record |= {"label": key.label, "master": key.master}
    if passphrase is not None:
        record["format"] = SEALED_FORMAT
        secret = bytes.fromhex(record.pop("secret"))
        record["sealed"] = seal(secret, _canonical(record), passphrase)
    record["checksum"] = _checksum(record)
    return json.dumps(record, indent=2).encode() + b"\n"


def _parse(content: bytes, name: str, unlock: Unlock) -> WatermarkKey:
    """Build the key from a file's bytes; messages never quote the file, which holds the secret."""
    record = _checked(content, name)
    if record["format"] == SEALED_FORMAT:
        record["secret"] = _unsealed(record, name, unlock)
    try:
        return WatermarkKey(
            Secret(bytes.fromhex(record["secret"])),
            float(record["gamma"]),
            TokenizerId(str(record["tokenizer"]["name"]), str(record["tokenizer"]["fingerprint"])),
            str(record["created"]),
            str(record["note"]),
            str(record.get("label", "")),
            str(record.get("master", "")),
        )
    except (DllmarkError, KeyError, TypeError, ValueError, OverflowError):
        raise _damaged(name) from None


def _checked(content: bytes, name: str) -> dict[str, Any]:
    """Return the fields of a file that is of this version and was not changed by accident."""
    try:
        record = json.loads(content)
        if not isinstance(record, dict) or not isinstance(record.get("format"), str):
            raise _damaged(name)
        if record["format"] not in (FORMAT, SEALED_FORMAT) or record.get("scheme") != SCHEME:
            raise KeyFileError(
                f"{name} is of another version: this one reads {FORMAT!r} with scheme {SCHEME!r}. "
                "Use the version of dllmark that wrote it, or make a new key"
            )
        if record.pop("checksum", None) != _checksum(record):
            raise _damaged(name)
        return record
    except (ValueError, RecursionError):
        raise _damaged(name) from None


def _unsealed(record: dict[str, Any], name: str, unlock: Unlock) -> str:
    """Return the secret of a locked file; all its other fields are as they were when it was."""
    _require_sealing()
    passphrase = unlock(name)
    try:
        sealed = record.pop("sealed")
        secret = unseal(sealed, _canonical(record), passphrase)
    except (KeyError, TypeError, ValueError):
        raise _damaged(name) from None
    if secret is None:
        raise KeyFileError(
            f"the passphrase does not open {name}: try again. If it is surely right, the file was "
            "changed on purpose: restore it from a backup"
        )
    return secret.hex()


def _require_sealing() -> None:
    require("a key with a passphrase", "keys", "cryptography")


def _damaged(name: str) -> KeyFileError:
    return KeyFileError(
        f"{name} is cut short or was changed: restore it from a backup or make a new key"
    )


def _checksum(record: dict[str, Any]) -> str:
    """Return a hash of every field, so that an accidental change of any is noticed."""
    return hashlib.sha256(b"dllmark key file\0" + _canonical(record)).hexdigest()[:16]


def _canonical(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True).encode()
