"""The server behind this one: it writes texts with the mark, over OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dllmark.attacks.endpoint import check_url
from dllmark.errors import InputError, require
from dllmark.server.metrics import Metrics
from dllmark.server.refusal import Refusal, too_many
from dllmark.server.streams import log

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

KEY_VARIABLE = "DLLMARK_UPSTREAM_KEY"
"""The environment variable with the API key that the upstream asks for."""

CONNECT_SECONDS = 10.0


class Upstream:
    """An OpenAI-compatible server, and the requests that are under way there.

    `url` ends before `/chat/completions`, as clients are given it. `seconds` is how long nothing
    may come from it, before an answer and between the pieces of a stream.

    >>> Upstream("http://127.0.0.1:30000/v1").url
    'http://127.0.0.1:30000/v1'
    """

    def __init__(self, url: str, api_key: str | None = None, seconds: float = 300.0) -> None:
        require("--upstream", "serve", "httpx")
        import httpx

        check_url(url, api_key)
        if api_key and not api_key.isprintable():
            raise InputError(
                f"{KEY_VARIABLE} holds a line end or another character keys never have"
            )
        if not seconds > 0:
            raise InputError(f"the upstream needs more than 0 seconds to answer; got {seconds:g}")
        self.url = url.rstrip("/")
        self.seconds = seconds
        self.pending: set[Place] = set()
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)),
            limits=httpx.Limits(max_connections=None),  # `place` decides
            follow_redirects=False,  # another host must not get the key
        )

    def place(self, waiting: int, metrics: Metrics) -> Place:
        """Take a place for a generation, or refuse it where `waiting` others are before it."""
        if len(self.pending) > waiting:
            raise too_many(
                "queue_full",
                f"{len(self.pending)} generations are under way, which is the most: try again",
                1,
            )
        return Place(self.pending, metrics)

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON that the upstream answers with."""
        with self._explained():
            response = await self._client.request(method, f"{self.url}/{path}", json=body)
        _raise_refusal(response)
        return _json(response.content)

    async def open(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Return an answer that is a stream of events; it is to be closed."""
        request = self._client.build_request("POST", f"{self.url}/{path}", json=body)
        with self._explained():
            response = await self._client.send(request, stream=True)
            if response.status_code != 200:
                await response.aread()
        _raise_refusal(response)
        return response

    async def events(self, response: httpx.Response) -> AsyncIterator[str]:
        """Yield the data of each event of a stream, the last of which is [DONE]."""
        with self._explained():
            async for line in response.aiter_lines():
                field, _, value = line.partition(":")
                if field == "data":
                    yield value.strip()
                    if value.strip() == "[DONE]":
                        return
        raise _broken("its stream ended before its end was announced")

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn a failure of the connection into a refusal that says what to do."""
        import httpx

        try:
            yield
        except httpx.TimeoutException as error:
            log.warning("the upstream did not answer in time: %s", type(error).__name__)
            raise Refusal(
                504,
                "upstream_timeout",
                f"nothing came from the upstream server for {self.seconds:g} seconds: ask for "
                "fewer tokens, or try again later",
            ) from None
        except httpx.HTTPError as error:
            log.warning("the upstream cannot be reached: %s", type(error).__name__)
            raise Refusal(
                502,
                "upstream_unreachable",
                "the upstream server, which writes the texts, cannot be reached or broke off: try "
                "again later, and see whether it runs at the address given with --upstream",
            ) from None


class Place:
    """A generation that is under way at the upstream, until it is given up or done.

    It counts as failed where `with` ends in a refusal.
    """

    def __init__(self, pending: set[Place], metrics: Metrics) -> None:
        self._pending, self._metrics = pending, metrics
        self.outcome = "cancelled"
        pending.add(self)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, *__: Any
    ) -> None:
        if isinstance(error, Refusal):
            self.outcome = "failed"

    def cancel(self) -> None:
        """Free the place."""
        if self in self._pending:
            self._pending.discard(self)
            self._metrics.generations.labels(self.outcome).inc()


def _raise_refusal(response: httpx.Response) -> None:
    """Raise for an answer that is none, as far as the client is concerned.

    What the upstream says of the client's request is passed on. What is wrong between the two
    servers is not the client's fault.
    """
    status = response.status_code
    if status == 200:
        return
    if status in (401, 403):
        log.error("the upstream refuses this server's key: set %s", KEY_VARIABLE)
        raise Refusal(
            502,
            "upstream_refused",
            "the upstream server does not let this one ask: whoever runs it must set its API key "
            f"({KEY_VARIABLE})",
        )
    if status == 429:
        after = response.headers.get("retry-after", "1")
        raise too_many("upstream_busy", "the upstream server is busy: try again later",
                       int(after) if after.isdigit() else 1)  # fmt: skip
    if 400 <= status < 500:
        raise Refusal(status, "upstream_error", _message(response))
    raise _broken(f"it answered with status {status}")


def _message(response: httpx.Response) -> str:
    """Return what the upstream says is wrong with a request."""
    try:
        error = response.json()
        error = error.get("error", error)
        message = error if isinstance(error, str) else error["message"]
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        message = f"status {response.status_code}"
    return f"the upstream server refuses this request: {str(message)[:1000]}"


def _json(content: bytes | str) -> Any:
    """Return JSON that the upstream sent."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise _broken("it answered without a JSON object")
    return answer


def _broken(how: str) -> Refusal:
    """Return the refusal of a request that the upstream spoilt."""
    log.warning("the upstream failed: %s", how)
    return Refusal(
        502,
        "upstream_failed",
        f"the upstream server failed ({how}): try again, and see its own log",
    )
