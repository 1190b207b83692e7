"""OpenAI's API with another server behind it: limits and access are ours, the texts are its own.

What comes back is checked for the mark. The verdicts are in the header `X-Dllmark-Verdict` of an
answer, and in the metrics, where those of streams are too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from dllmark.sampling.settings import TOKENS
from dllmark.server.openai_models import (
    ChatRequest,
    CompletionRequest,
    CompletionResponse,
    ModelList,
    TextRequest,
)
from dllmark.server.service import Service
from dllmark.server.streams import Event, EventStream, event, log, unless_gone
from dllmark.server.upstream import Place, Upstream

router = APIRouter(tags=["OpenAI"])

STREAM = {
    "description": "The texts, or with `stream` pieces of them as server-sent events.",
    "content": {"text/event-stream": {}},
    "headers": {
        "X-Dllmark-Verdict": {
            "description": "What detection says of each text, in their order; not of a stream.",
            "schema": {"type": "string"},
        }
    },
}


@router.get("/v1/models", response_model=ModelList)
async def models(request: Request) -> Response:
    """List the upstream's models."""
    service: Service = request.app.state.service
    return _json(await _upstream(service).ask("GET", "models"))


@router.post("/v1/completions", response_model=CompletionResponse, responses={200: STREAM})
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Have a text continued, or several."""
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    sent = {**_sent(body), "max_tokens": body.max_tokens}
    return await _forward(request, "completions", body, prompts, sent)


@router.post("/v1/chat/completions", response_model=CompletionResponse, responses={200: STREAM})
async def chat(body: ChatRequest, request: Request) -> Response:
    """Have a conversation answered."""
    prompt = "\n".join(message.turn[1] for message in body.messages)
    tokens = body.max_completion_tokens or body.max_tokens or TOKENS
    sent = {**_sent(body), "max_tokens": tokens}
    sent.pop("max_completion_tokens", None)
    return await _forward(request, "chat/completions", body, [prompt], sent)


def _sent(body: TextRequest) -> dict[str, Any]:
    """Return what the client said, and nothing that we made of it."""
    return body.model_dump(exclude_unset=True, exclude_none=True)


async def _forward(
    request: Request, path: str, body: TextRequest, prompts: list[str], sent: dict[str, Any]
) -> Response:
    """Check a request against the limits, send it on, and check what comes back."""
    service: Service = request.app.state.service
    upstream = _upstream(service)
    body.refuse_unknown()
    service.limits.check_texts(prompts, body.n)
    service.limits.check_tokens(sent["max_tokens"], len(prompts) * body.n)
    place = upstream.place(service.limits.waiting, service.metrics)
    if body.stream:
        try:
            with place:
                response = await upstream.open(path, sent)
        except BaseException:
            place.cancel()
            raise
        pieces = _Pieces(service, place, upstream.events(response))
        return _Stream(pieces.events(), place, response)
    answer = await unless_gone(request, place, _answer(service, place, path, sent))
    texts = [_text(choice) for choice in _choices(answer)]
    results = await service.run(service.check, texts)
    _count(service, answer, results)
    return _json(answer, {"X-Dllmark-Verdict": ", ".join(each["verdict"] for each in results)})


async def _answer(service: Service, place: Place, path: str, sent: dict[str, Any]) -> Any:
    """Return the whole answer, without what a public server does not tell."""
    with place:
        answer = await _upstream(service).ask("POST", path, sent)
    place.outcome = "finished"
    return _shown(service, answer)


class _Pieces:
    """The pieces of a stream, passed on as they come; the texts they add up to are checked."""

    def __init__(self, service: Service, place: Place, data: AsyncIterator[str]) -> None:
        self._service, self._place, self._data = service, place, data
        self._texts: dict[int, str] = {}
        self._usage: dict[str, Any] = {}

    async def events(self) -> AsyncIterator[Event]:
        """Yield each piece, and count at the end."""
        with self._place:
            async for data in self._data:
                if data == "[DONE]":
                    self._place.outcome = "finished"
                    texts = list(self._texts.values())
                    results = await self._service.run(self._service.check, texts)
                    _count(self._service, self._usage, results)
                    self._place.cancel()  # whoever has read the end may ask again at once
                yield event(data if data == "[DONE]" else self._read(data))

    def _read(self, data: str) -> str:
        """Note the text in a piece, and return the piece."""
        try:
            piece = json.loads(data)
        except (ValueError, RecursionError):
            return data
        if not isinstance(piece, dict):
            return data
        for choice in _choices(piece):
            index = choice.get("index", 0)
            self._texts[index] = self._texts.get(index, "") + _text(choice)
        if isinstance(piece.get("usage"), dict):
            self._usage = piece
        return json.dumps(_shown(self._service, piece))


class _Stream(EventStream):
    """A stream whose end, however it comes, closes the upstream's too."""

    def __init__(self, events: AsyncIterator[Event], place: Place, response: Any) -> None:
        super().__init__(events, place)
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._response.aclose()


def _upstream(service: Service) -> Upstream:
    assert service.upstream is not None
    return service.upstream


def _choices(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the texts of an answer or of a piece of one."""
    choices = answer.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _text(choice: dict[str, Any]) -> str:
    """Return the text of a choice: of a completion, a chat, or a piece of one."""
    text = choice.get("text")
    for part in ("message", "delta"):
        if isinstance(choice.get(part), dict):
            text = choice[part].get("content")
    # JSON can hold half a character, which no tokenizer takes.
    return text.encode(errors="replace").decode() if isinstance(text, str) else ""


def _shown(service: Service, answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, on a public server without the name of the key that a dllmark adds."""
    if service.public:
        answer.pop("watermark", None)
    return answer


def _count(service: Service, answer: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Add verdicts and tokens to the metrics, and log that a text seems to have no mark."""
    for result in results:
        service.metrics.upstream_texts.labels(result["verdict"]).inc()
        if result["verdict"] == "not detected":
            log.warning("a text of the upstream's has none of the marks of this server's keys")
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if isinstance(tokens, int):
        service.metrics.tokens.inc(tokens)


def _json(content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), media_type="application/json", headers=headers)
