"""What every request passes: who asks, how much, what the log may say, and headers for browsers."""

from __future__ import annotations

import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dllmark.server.access import Tokens, is_own_name
from dllmark.server.limits import RateLimit
from dllmark.server.refusal import Refusal, too_many
from dllmark.server.service import Service
from dllmark.server.streams import log, log_failure, unexpected

METHODS = {"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"}

SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """The outermost layer. It logs method, route, status and time: no text, address or query."""

    def __init__(self, app: ASGIApp, service: Service, tokens: Tokens | None) -> None:
        self._app = app
        self._service = service
        self._tokens = tokens
        self._rate = RateLimit(service.limits.per_minute)
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(SAFE_HEADERS)
            await send(message)

        self._running += 1
        try:
            self._admit(scope)
            await self._app(scope, self._bounded(receive), answer)
        except Refusal as refusal:
            await refusal.response()(scope, receive, answer)
        except Exception as error:
            log_failure(error)
            if not status:
                await unexpected(error).response()(scope, receive, answer)
        finally:
            self._running -= 1
            self._count(scope, status, time.perf_counter() - start)

    def _admit(self, scope: Scope) -> None:
        """Refuse a client that may not ask, or not now."""
        headers = Headers(scope=scope)
        if self._tokens is None and not is_own_name(headers.get("host", "")):
            raise Refusal(
                421,
                "wrong_host",
                "without tokens this server answers only to localhost and 127.0.0.1: use that "
                "address, or start it with --token-file",
            )
        if not scope["path"].startswith(("/v1/", "/metrics")):
            return
        client: str | None = (scope.get("client") or ("unknown", 0))[0]
        if self._tokens is not None:
            client = self._tokens.client(headers.get("authorization", ""))
        if client is None:
            raise Refusal(
                401,
                "wrong_token",
                "send a token of this server as `Authorization: Bearer TOKEN`",
                headers={"WWW-Authenticate": "Bearer"},
            )
        limits = self._service.limits
        self._rate.spend(client)
        if self._running > limits.concurrent:
            raise too_many(
                "too_many_at_once", f"more than {limits.concurrent} requests at a time", 1
            )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > limits.body:
            raise self._too_large()

    def _bounded(self, receive: Receive) -> Receive:
        """Return a `receive` that refuses a body which turns out too large, as it arrives."""
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._service.limits.body:
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> Refusal:
        most = self._service.limits.body
        return Refusal(413, "body_too_large", f"a request has at most {most} bytes: send less")

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        """Put a request into the log and the metrics, by its route: a path may hold anything."""
        route: Any = scope.get("route")
        path = getattr(route, "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        metrics = self._service.metrics
        metrics.requests.labels(method, path, status).inc()
        metrics.request_seconds.labels(path).observe(seconds)
        log.info("%s %s %d %.0f ms", method, path, status, 1000 * seconds)
