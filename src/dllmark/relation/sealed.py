"""Secrets under a passphrase: scrypt makes a key of it, ChaCha20-Poly1305 seals with that key.

Both come from `cryptography`, which is there where `dllmark[keys]` is installed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dllmark.relation.key import Secret

COST = {"n": 1 << 17, "r": 8, "p": 1}
"""What scrypt is made to cost when sealing: 128 MiB, and about half a second."""

MOST_MEMORY = 1 << 28
MOST_PARALLEL = 4
"""What a file may ask for when it is opened: else one from a stranger could take all memory."""

CIPHER = "scrypt-chacha20-poly1305"
SALT_BYTES, NONCE_BYTES, MOST_DIGITS = 16, 12, 1024


def seal(secret: bytes, facts: bytes, passphrase: Secret) -> dict[str, Any]:
    """Return a secret sealed as JSON values; `facts` stay open, and cannot be changed unnoticed.

    >>> box = seal(b"a secret", b"its facts", Secret(b"correct horse"))  # doctest: +SKIP
    >>> unseal(box, b"its facts", Secret(b"correct horse"))  # doctest: +SKIP
    b'a secret'
    """
    salt, nonce = os.urandom(SALT_BYTES), os.urandom(NONCE_BYTES)
    box = _cipher(passphrase, salt, **COST).encrypt(nonce, secret, facts)
    return {
        "cipher": CIPHER, **COST, "salt": salt.hex(), "nonce": nonce.hex(),
        "box": box.hex(),
    }  # fmt: skip


def unseal(sealed: dict[str, Any], facts: bytes, passphrase: Secret) -> bytes | None:
    """Return what was sealed, or None where the passphrase or the facts are others.

    What `seal` never wrote is a `KeyError`, `TypeError` or `ValueError`.
    """
    from cryptography.exceptions import InvalidTag

    cost = {name: sealed[name] for name in COST}
    if sealed["cipher"] != CIPHER or not _affordable(**cost):
        raise ValueError
    salt, nonce, box = (_from_hex(sealed[name]) for name in ("salt", "nonce", "box"))
    if len(nonce) != NONCE_BYTES:
        raise ValueError
    try:
        secret: bytes = _cipher(passphrase, salt, **cost).decrypt(nonce, box, facts)
        return secret
    except InvalidTag:
        return None


def _affordable(n: Any, r: Any, p: Any) -> bool:
    """Return whether these are costs of scrypt, and none that exhaust the machine."""
    whole = all(type(cost) is int and cost >= 1 for cost in (n, r, p))
    power = whole and n > 1 and n & (n - 1) == 0
    return bool(power and 128 * n * r <= MOST_MEMORY and p <= MOST_PARALLEL)


def _from_hex(text: Any) -> bytes:
    if not isinstance(text, str) or len(text) > MOST_DIGITS:
        raise ValueError
    return bytes.fromhex(text)


def _cipher(passphrase: Secret, salt: bytes, *, n: int, r: int, p: int) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return ChaCha20Poly1305(Scrypt(salt, 32, n, r, p).derive(passphrase.reveal()))
