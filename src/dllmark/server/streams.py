"""Server-sent events, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dllmark.server.jobs import Writing
from dllmark.server.refusal import Refusal

log = logging.getLogger("dllmark.server")

Result = TypeVar("Result")


def event(data: dict[str, Any] | str, name: str | None = None) -> bytes:
    r"""Return one server-sent event.

    >>> event({"number": 1}, "step")
    b'event: step\ndata: {"number": 1}\n\n'
    """
    content = data if isinstance(data, str) else json.dumps(data)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {content}\n\n".encode()


class EventStream(StreamingResponse):
    """A stream of the events of a writing, which ends when the client goes away."""

    def __init__(self, events: AsyncIterator[bytes], writing: Writing) -> None:
        # A gateway that buffers would keep the steps back.
        headers = {"X-Accel-Buffering": "no"}
        super().__init__(_told(events), headers=headers, media_type="text/event-stream")
        self._writing = writing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; the writing ends with them, whatever ends them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._writing.cancel()


async def _told(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass events on, and an error as the last of them: the status has been sent already."""
    try:
        async for chunk in events:
            yield chunk
    except Exception as error:
        log_failure(error)
        yield event(unexpected(error).body(), "error")


async def unless_gone(
    request: Request, writing: Writing, work: Coroutine[Any, Any, Result]
) -> Result:
    """Wait for some work on a writing; where the client goes away first, end the writing."""
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
        writing.cancel()


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
