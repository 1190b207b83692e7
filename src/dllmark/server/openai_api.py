"""The part of OpenAI's API that a text generator needs, so that its clients work unchanged.

A diffusion model reveals tokens in any order, and this protocol has only text that grows at its
end. So with `stream` a piece is sent when everything before it is final: the text comes in bursts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from dllmark.sampling.settings import TOKENS
from dllmark.server.generate_api import GenerateRequest, make_arguments
from dllmark.server.generation_queue import GenerateArguments, QueuedGeneration, Waiting
from dllmark.server.openai_models import (
    ChatRequest,
    CompletionRequest,
    CompletionResponse,
    ModelCard,
    ModelList,
    TextRequest,
    Usage,
)
from dllmark.server.refusal import Refusal
from dllmark.server.service import Service
from dllmark.server.streams import Event, EventStream, event, unless_gone

if TYPE_CHECKING:
    from dllmark.sampling.texts import Generation, Step

router = APIRouter(tags=["OpenAI"])

STREAM = {
    "description": "The texts, or with `stream` pieces of them as server-sent events.",
    "content": {"text/event-stream": {}},
}


@router.get("/v1/models")
async def models(request: Request) -> ModelList:
    """List the only model there is."""
    service: Service = request.app.state.service
    name = service.model_name or ""
    return ModelList(data=[ModelCard(id=name, created=request.app.state.started)])


@router.post("/v1/completions", response_model=CompletionResponse, responses={200: STREAM})
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue a text, or several, marked with the server's first key."""
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    return await _answer(request, body, prompts, body.max_tokens, chat=False)


@router.post("/v1/chat/completions", response_model=CompletionResponse, responses={200: STREAM})
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, marked with the server's first key."""
    service: Service = request.app.state.service
    assert service.model is not None
    prompt = service.model.conversation([message.turn for message in body.messages])
    tokens = body.max_completion_tokens or body.max_tokens or TOKENS
    return await _answer(request, body, [prompt], tokens, chat=True)


async def _answer(
    request: Request, body: TextRequest, prompts: list[str], tokens: int, *, chat: bool
) -> Response:
    """Write the texts; what goes to the model is the prompts as they are."""
    service: Service = request.app.state.service
    body.refuse_unknown()
    if body.model != service.model_name:
        raise Refusal(404, "model_not_found", f"the model here is {service.model_name}",
                      param="model")  # fmt: skip
    service.limits.check_texts(prompts, body.n)
    service.limits.check_tokens(tokens, len(prompts) * body.n)
    prompts = [prompt for prompt in prompts for _ in range(body.n)]
    settings = GenerateRequest(
        prompt=prompts[0],
        tokens=tokens,
        temperature=body.temperature,
        top_p=body.top_p or 1.0,
        seed=body.seed,
        chat=False,
    )
    arguments = await service.run(make_arguments, service, prompts, settings)
    assert service.queue is not None
    generation = service.queue.start(arguments)
    answer = Answer(service, arguments, body, chat)
    if body.stream:
        return EventStream(answer.events(generation), generation)
    texts = await unless_gone(request, generation, generation.texts())
    return JSONResponse(answer.whole(texts))


@dataclass
class FinishedText:
    """A finished text, and how it ended."""

    text: str
    tokens: int
    reason: Literal["stop", "length"]


class Answer:
    """Writes texts down as OpenAI's clients read them."""

    def __init__(
        self, service: Service, arguments: GenerateArguments, body: TextRequest, chat: bool
    ) -> None:
        self._tokenizer = service.tokenizer
        assert service.model is not None
        self._ends = set(service.model.end_ids)
        self._prompts, self._tokens, self._chat = arguments.prompts, arguments.tokens, chat
        self._usage = body.stream_options is not None and body.stream_options.include_usage
        kind = "chat.completion" if chat else "text_completion"
        self._head: dict[str, Any] = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12),
            "object": kind + ".chunk" if chat and body.stream else kind,
            "created": int(time.time()),
            "model": body.model,
        }
        if not service.public:
            self._head["watermark"] = arguments.key.identity.to_dict()

    def whole(self, texts: list[Generation]) -> dict[str, Any]:
        """Return all the texts at once."""
        finished = [self._finished(text) for text in texts]
        return {
            **self._head,
            "choices": [
                self._choice(index, text.text, text.reason, "message")
                for index, text in enumerate(finished)
            ],
            "usage": self._used(finished),
        }

    async def events(self, generation: QueuedGeneration) -> AsyncIterator[Event]:
        """Yield the pieces of the texts as they become final."""
        sent = [""] * len(self._prompts)
        async for step in generation.steps():
            if isinstance(step, Waiting):
                continue
            if isinstance(step, list):
                finished = [self._finished(text) for text in step]
                for index, text in enumerate(finished):
                    rest = text.text[len(sent[index]) :]
                    yield self._chunk(self._choice(index, rest, text.reason, "delta"))
                if self._usage:
                    yield event({**self._head, "choices": [], "usage": self._used(finished)})
                continue
            for index, final in enumerate(self._final(step)):
                if len(final) > len(sent[index]):
                    piece = final[len(sent[index]) :]
                    yield self._chunk(self._choice(index, piece, None, "delta"))
                    sent[index] = final
        yield event("[DONE]")

    def _final(self, step: Step) -> list[str]:
        """Return how much of each text is final: all before the first mask.

        A character that is cut in the middle, which decodes to U+FFFD, waits for its other tokens.
        """
        texts = []
        rows = zip(
            step.tokens[:, step.start :].tolist(),
            step.revealed[:, step.start :].tolist(),
            strict=True,
        )
        for ids, revealed in rows:
            known = revealed.index(False) if False in revealed else len(ids)
            end = next((at for at in range(known) if ids[at] in self._ends), known)
            texts.append(self._tokenizer.decode(ids[:end]).rstrip("\ufffd"))
        return texts

    def _finished(self, text: Generation) -> FinishedText:
        """Say whether a text ended by itself."""
        ended = len(text.ids) < self._tokens
        return FinishedText(text.text, len(text.ids), "stop" if ended else "length")

    def _used(self, texts: list[FinishedText]) -> dict[str, int]:
        read = sum(len(ids) for ids in self._tokenizer.encode_many(self._prompts))
        written = sum(text.tokens for text in texts)
        return Usage(
            prompt_tokens=read, completion_tokens=written, total_tokens=read + written
        ).model_dump()

    def _choice(
        self, index: int, text: str, reason: str | None, part: Literal["message", "delta"]
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self._chat:
            content = {part: {"role": "assistant", "content": text}}
        return {"index": index, **content, "finish_reason": reason, "logprobs": None}

    def _chunk(self, choice: dict[str, Any]) -> Event:
        extra = {"usage": None} if self._usage else {}
        return event({**self._head, "choices": [choice], **extra})
