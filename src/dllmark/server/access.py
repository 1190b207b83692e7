"""Who may ask: bearer tokens from a private file, and where a server may listen without them."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from dllmark.errors import InputError
from dllmark.files import decode, others_can_read, reading

SHORTEST = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Tokens:
    """The bearer tokens that are accepted, kept as hashes.

    >>> tokens = Tokens(["a secret of 16 letters or more"])
    >>> tokens.client("Bearer wrong") is None
    True
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    def client(self, authorization: str) -> str | None:
        """Return a name for the client whose token an Authorization header holds, else None.

        Every token is compared, in constant time: how long it takes tells nothing about any.
        """
        scheme, _, given = authorization.partition(" ")
        digest = _digest(given.strip())
        same = [hmac.compare_digest(digest, known) for known in self._digests]
        return f"token {same.index(True)}" if scheme.lower() == "bearer" and any(same) else None


def read_tokens(path: Path) -> Tokens:
    """Read a file with a token a line; blank lines and those that start with # do not count.

    >>> read_tokens(Path("tokens.txt"))  # doctest: +SKIP
    """
    name = f"the token file {path}"
    with reading(name), path.open("rb") as file:
        if others_can_read(file):
            raise InputError(f"{path} can be read by other users: run `chmod 600 {path}`")
        content = decode(file.read(1 << 20), name)
    lines = [line.strip() for line in content.splitlines()]
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens or min(map(len, tokens)) < SHORTEST:
        raise InputError(
            f"{path} needs a token a line, each of {SHORTEST} characters or more: make one with "
            'python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return Tokens(tokens)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def is_own_name(host_header: str) -> bool:
    """Return whether a Host header names this machine, as one of a browser on it does.

    A page elsewhere can make its own name point here and then read our answers; its name gives it
    away.

    >>> is_own_name("localhost:8000"), is_own_name("evil.example:8000")
    (True, False)
    """
    name, _, port = host_header.rpartition(":")
    name = name if port.isdigit() else host_header
    return name.strip("[]").lower() in LOOPBACK_NAMES or is_loopback(name.strip("[]"))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
