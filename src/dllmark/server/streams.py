"""Server-sent events, clients that go away, and errors that are ours."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

from fastapi import Request
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from dllmark.server.refusal import Refusal

log = logging.getLogger("dllmark.server")
logging.getLogger("sse_starlette").setLevel(logging.INFO)  # below, it logs the texts it sends

PING_SECONDS = 15.0
"""A comment is sent so often: gateways cut connections on which nothing comes for a minute."""

Event = dict[str, str | None]
"""A server-sent event, as `EventSourceResponse` writes it."""

Result = TypeVar("Result")


class Cancellable(Protocol):
    """A generation that can be given up."""

    def cancel(self) -> None:
        """Give it up; never too late."""


def event(data: dict[str, Any] | str, name: str | None = None) -> Event:
    """Return an event with JSON, or with a text as it is.

    >>> event({"number": 1}, "step")
    {'event': 'step', 'data': '{"number": 1}'}
    """
    return {"event": name, "data": data if isinstance(data, str) else json.dumps(data)}


class EventStream(EventSourceResponse):
    """The events of a generation, which ends when the client goes away.

    Comments keep the connection alive while the generation waits for its turn.
    """

    def __init__(self, events: AsyncIterator[Event], generation: Cancellable) -> None:
        super().__init__(_with_errors(events), ping=PING_SECONDS, sep="\n")
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; the generation ends with them, whatever ends them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.cancel()


async def _with_errors(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Pass events on, and an error as the last of them: the status has been sent already."""
    try:
        async for each in events:
            yield each
    except Refusal as refusal:
        yield event(refusal.body(), "error")
    except Exception as error:
        log_failure(error)
        yield event(unexpected(error).body(), "error")


async def unless_gone(
    request: Request, generation: Cancellable, work: Coroutine[Any, Any, Result]
) -> Result:
    """Wait for some work on a generation; where the client goes away first, end both."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Refusal(499, "client_gone", "the client went away")
    finally:
        task.cancel()
        gone.cancel()
        generation.cancel()


async def _gone(request: Request) -> None:
    """Return once the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def log_failure(error: Exception) -> None:
    """Log where an error of ours came from, not its message: that may quote a text."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("failed with %s\n%s", type(error).__name__, where)


def unexpected(error: Exception) -> Refusal:
    """Return what a client is told of an error that is ours."""
    return Refusal(500, "internal_error", f"the server failed ({type(error).__name__})")
