"""How much one request, one client and all of them together may ask for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic.config import JsonDict

from dllmark.errors import InputError
from dllmark.server.refusal import Refusal, too_many


@dataclass(frozen=True)
class Limits:
    """The limits of a server; what goes beyond one is refused with a 4xx that names it.

    body           bytes of a request
    characters     of one text or prompt
    batch          texts to check or to write in a request
    tokens         to write for a prompt
    total_tokens   to write in a request, all its texts together
    concurrent     requests at a time
    per_minute     requests of one client
    waiting        generations that wait while another one runs

    >>> Limits(batch=2).check_texts(["one", "two"])
    """

    body: int = 2_000_000
    characters: int = 200_000
    batch: int = 64
    tokens: int = 512
    total_tokens: int = 8192
    concurrent: int = 128
    per_minute: int = 600
    waiting: int = 8

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "waiting" else 1
            if value < least:
                raise InputError(f"the limit {name} is at least {least}; got {value}")

    def check_texts(self, texts: Sequence[str], each: int = 1) -> None:
        """Refuse too many texts, and one that is too long; each may be to be written many times."""
        count = len(texts) * each
        if count > self.batch:
            raise Refusal(
                413,
                "too_many_texts",
                f"{count} texts in one request, but {self.batch} are the most: send several "
                "requests",
            )
        longest = max(map(len, texts), default=0)
        if longest > self.characters:
            raise Refusal(
                413,
                "text_too_long",
                f"a text has {longest} characters, but {self.characters} are the most: cut it",
            )

    def check_tokens(self, tokens: int, texts: int = 1) -> None:
        """Refuse to write too long a text, or too much in all texts of a request together."""
        if tokens > self.tokens:
            raise Refusal(
                400,
                "too_many_tokens",
                f"{tokens} tokens asked for, but {self.tokens} are the most: ask for fewer",
            )
        if texts * tokens > self.total_tokens:
            raise Refusal(
                400,
                "too_many_tokens",
                f"{texts} texts of {tokens} tokens have {texts * tokens} in all, but "
                f"{self.total_tokens} are the most in one request: send several requests",
            )

    def check_steps(self, steps: int) -> None:
        """Refuse more steps than the longest text has tokens: each costs as much as the others."""
        if steps > self.tokens:
            raise Refusal(
                400,
                "too_many_steps",
                f"{steps} steps asked for, but {self.tokens} are the most: ask for fewer",
            )


def shown_limit(keyword: str, limit: str) -> JsonDict:
    """Return what makes a field's schema show a limit, whose number is known at start only.

    >>> shown_limit("maximum", "tokens")
    {'x-limit': {'maximum': 'tokens'}}
    """
    return {"x-limit": {keyword: limit}}


def with_limits(schema: Any, limits: Limits) -> Any:
    """Return a schema with the numbers of a server's limits.

    >>> with_limits({"type": "integer", "x-limit": {"maximum": "tokens"}}, Limits())
    {'type': 'integer', 'maximum': 512}
    """
    if isinstance(schema, list):
        return [with_limits(part, limits) for part in schema]
    if not isinstance(schema, dict):
        return schema
    named = schema.get("x-limit", {})
    others = {name: with_limits(part, limits) for name, part in schema.items() if name != "x-limit"}
    return {**others, **{keyword: getattr(limits, limit) for keyword, limit in named.items()}}


class RateLimit:
    """Requests a minute of each client: a bucket that fills evenly and holds one minute's worth.

    Clients are tokens, or without tokens addresses of this machine: few enough to remember all.

    >>> limit = RateLimit(1)
    >>> limit.spend("a client")
    >>> limit.spend("a client")
    Traceback (most recent call last):
    dllmark.server.refusal.Refusal: 429: more than 1 requests a minute: wait 60 seconds
    """

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def spend(self, client: str) -> None:
        """Count one request, or refuse it."""
        now = self._now()
        left = self._left(client, now)
        if left < 1:
            wait = math.ceil((1 - left) * 60 / self.per_minute)
            raise too_many(
                "too_many_requests",
                f"more than {self.per_minute} requests a minute: wait {wait} seconds",
                wait,
            )
        self._buckets[client] = (left - 1, now)

    def _left(self, client: str, now: float) -> float:
        """Return how many requests a client has left."""
        left, then = self._buckets.get(client, (float(self.per_minute), now))
        return min(self.per_minute, left + (now - then) * self.per_minute / 60)
