"""The application: routes, errors in one shape, and the page."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from dllmark import __version__
from dllmark.errors import DllmarkError, KeyFileError, KeyRingError, MismatchError
from dllmark.marking.strategies import MAX_DELTA, STRATEGIES
from dllmark.sampling.settings import TEMPERATURE, TOKENS, Llada, default_strategy
from dllmark.server import detect_api, generate_api, openai_api, upstream_api
from dllmark.server.access import Tokens
from dllmark.server.guard import Guard
from dllmark.server.limits import with_limits
from dllmark.server.refusal import ErrorBody, Refusal
from dllmark.server.service import Service
from dllmark.server.streams import log, log_failure, unexpected

PAGE = Path(__file__).parent / "page"
PAGE_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
"""Given here because a system's own table may be wrong, and browsers are told not to guess."""

NO_KEY = "no key can be used now, so nothing is written; the server's log says why"

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in (
        (400, "The request cannot be served."),
        (401, "The token is missing or wrong."),
        (404, "There is no such thing here."),
        (413, "The body, a text or the number of texts is too large."),
        (421, "Without tokens, the server answers to its loopback address only."),
        (422, "The body is not what is expected."),
        (429, "Too many requests; Retry-After says when to come back."),
        (502, "The upstream cannot be reached, or failed."),
        (503, "No key can be used now, so nothing is written."),
        (504, "The upstream did not answer in time."),
    )
}


class Health(BaseModel):
    """That the server runs."""

    status: str = "ok"


class KeyInfo(BaseModel):
    """A key's public name and its share of green pairs."""

    id: str
    gamma: float


class ServerInfo(BaseModel):
    """What this server can do and how much of it."""

    version: str
    public: bool
    fpr: float
    keys: Annotated[
        list[KeyInfo],
        Field(description="That which marks first, and some others; none on a public server."),
    ]
    model: str | None
    upstream: Annotated[
        str | None, Field(description="The server that writes instead; not on a public server.")
    ]
    strategies: Annotated[
        dict[str, float], Field(description="Those that can be chosen, each with its own δ.")
    ]
    strategy: Annotated[str, Field(description="The one that is used where none is chosen.")]
    max_delta: float
    temperature: Annotated[float, Field(description="Where no other is chosen.")]
    tokens: Annotated[int, Field(description="To write where no other number is chosen.")]
    limits: dict[str, int]


class Application(FastAPI):
    """A FastAPI application whose schema shows the limits of its server."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI schema."""
        service: Service = self.state.service
        schema: dict[str, Any] = with_limits(super().openapi(), service.limits)
        return schema


def make_app(service: Service, tokens: Tokens | None = None) -> FastAPI:
    """Return the application of a service; without tokens, anyone who reaches it may ask.

    >>> from dllmark.server.service import Service
    >>> make_app(Service([key], Detector(key).tokenizer)).title
    'dllmark'
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()
        if service.upstream:
            await service.upstream.close()

    app = Application(
        title="dllmark",
        version=__version__,
        summary="Write text with a watermark, and recognise it.",
        docs_url=None,  # FastAPI's pages load scripts from other hosts; ours is page/docs.html
        redoc_url=None,
        lifespan=lifespan,
        responses=REFUSALS,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.started = int(time.time())
    app.add_middleware(Guard, service=service, tokens=tokens)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(DllmarkError, _unusable)
    app.include_router(detect_api.router)
    if service.model:
        app.include_router(generate_api.router)
        app.include_router(openai_api.router)
    elif service.upstream:
        app.include_router(upstream_api.router)
    _add_own_routes(app, service)
    _add_page(app)
    return app


def _add_own_routes(app: FastAPI, service: Service) -> None:
    """Add what tells about the server itself."""

    @app.get("/healthz", tags=["server"])
    async def healthz() -> Health:
        """Say that the server runs; needs no token."""
        return Health()

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Give counts and durations in Prometheus' text format."""
        return PlainTextResponse(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/server", tags=["server"])
    async def server() -> ServerInfo:
        """Say what this server can do, and its limits."""
        keys = [] if service.public else await service.run(service.shown_keys)
        strategies = [] if service.public or not service.model else STRATEGIES.values()
        return ServerInfo(
            version=__version__,
            public=service.public,
            fpr=service.fpr,
            keys=[KeyInfo(id=key.id, gamma=key.gamma) for key in keys],
            model=service.model_name,
            upstream=service.upstream.url if service.upstream and not service.public else None,
            strategies={strategy.name: strategy.default_delta for strategy in strategies},
            strategy=default_strategy(Llada()).name,
            max_delta=MAX_DELTA,
            temperature=TEMPERATURE,
            tokens=min(TOKENS, service.limits.tokens),
            limits=vars(service.limits),
        )


def _add_page(app: FastAPI) -> None:
    """Add the files of the page: each has a route, so that no path leads elsewhere."""

    def add(path: str, file: Path) -> None:
        async def send() -> FileResponse:
            return FileResponse(file, media_type=PAGE_TYPES[file.suffix])

        app.add_api_route(path, send, include_in_schema=False)

    add("/", PAGE / "index.html")
    add("/docs", PAGE / "docs.html")
    for file in PAGE.iterdir():
        if file.suffix in PAGE_TYPES:
            add(f"/page/{file.name}", file)


def _refused(_: Request, error: Exception) -> Response:
    """Write a refusal, ours or the router's (404, 405), in the one shape."""
    if isinstance(error, Refusal):
        return error.response()
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    headers = dict(error.headers) if error.headers else None
    return Refusal(error.status_code, code, error.detail, headers=headers).response()


def _invalid(_: Request, error: Exception) -> Response:
    """Say what is wrong with a body, without repeating it."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid" or len(first["loc"]) == 1:
        message = "the body is no JSON object: send one, with Content-Type: application/json"
        return Refusal(422, "invalid_body", message).response()
    where = ".".join(str(part) for part in first["loc"][1:])
    return Refusal(422, "invalid_body", f"{where}: {first['msg']}", param=where).response()


def _unusable(_: Request, error: Exception) -> Response:
    """Pass on what the library says of a request it cannot serve.

    Clients bring no keys. So where keys do not fit, the fault is ours, and a key's id stays here.
    """
    if isinstance(error, KeyFileError | KeyRingError):
        log.error("%s", error)
        return Refusal(503, "no_key", NO_KEY).response()
    if isinstance(error, MismatchError):
        log_failure(error)
        return unexpected(error).response()
    return Refusal(400, "unusable", str(error)).response()
