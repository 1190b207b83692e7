"""The part of OpenAI's API that a text generator needs, so that its clients work unchanged.

A diffusion model reveals tokens in any order, and this protocol has only text that grows at its
end. So with `stream` a piece is sent when everything before it is final: the text comes in bursts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from dllmark.server.generate_api import (
    BLOCK,
    LARGEST_SEED,
    TEMPERATURE,
    GenerateRequest,
    make_job,
)
from dllmark.server.jobs import Job, Writing
from dllmark.server.refusal import Refusal
from dllmark.server.service import Service
from dllmark.server.streams import EventStream, event, unless_gone

if TYPE_CHECKING:
    from dllmark.models.families import Family
    from dllmark.sampling import Generation, Step

router = APIRouter(tags=["OpenAI"])

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False,),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "stop": ("", []),
    "logit_bias": ({},),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}
"""Options of OpenAI's that we do not have, with the values that ask for nothing."""

NO_EFFECT = {"user", "metadata", "store", "safety_identifier", "service_tier"}
"""Options that do not change what is written."""


class StreamOptions(BaseModel):
    """What else a stream contains."""

    include_usage: bool = False


class _Asked(BaseModel):
    """What both ways of asking share."""

    model_config = ConfigDict(extra="allow")

    model: str
    n: Annotated[int, Field(ge=1, description="Texts for each prompt.")] = 1
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = TEMPERATURE
    top_p: Annotated[float | None, Field(gt=0, le=1, allow_inf_nan=False)] = None
    seed: Annotated[int | None, Field(ge=0, le=LARGEST_SEED)] = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    def refuse_unknown(self) -> None:
        """Refuse options that we would have to ignore."""
        for name, value in (self.model_extra or {}).items():
            if name not in NO_EFFECT and value is not None and value not in NEUTRAL.get(name, ()):
                raise Refusal(400, "unsupported_option", f"{name} is not supported here: leave it "
                              "out", param=name)  # fmt: skip


class CompletionRequest(_Asked):
    """Text to continue."""

    prompt: Annotated[str | list[str], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] = 128


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """What somebody said."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """Its content in one piece."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(_Asked):
    """A conversation to go on with."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(BaseModel):
    """The texts; a choice has `text`, or in a chat `message`."""

    id: str
    object: Literal["text_completion", "chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage


STREAM = {
    "description": "The texts, or with `stream` pieces of them as server-sent events.",
    "content": {"text/event-stream": {}},
}


class ModelCard(BaseModel):
    """A model that can be asked."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "dllmark"


class ModelList(BaseModel):
    """The models of this server."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get("/v1/models")
async def models(request: Request) -> ModelList:
    """List the only model there is."""
    service: Service = request.app.state.service
    name = service.model_name or ""
    return ModelList(data=[ModelCard(id=name, created=request.app.state.started)])


@router.post("/v1/completions", response_model=CompletionResponse, responses={200: STREAM})
async def completions(asked: CompletionRequest, request: Request) -> Response:
    """Continue a text, or several, marked with the server's first key."""
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    return await _answer(request, asked, prompts, asked.max_tokens, chat=False)


@router.post("/v1/chat/completions", response_model=CompletionResponse, responses={200: STREAM})
async def chat(asked: ChatRequest, request: Request) -> Response:
    """Answer a conversation, marked with the server's first key."""
    service: Service = request.app.state.service
    assert service.model is not None
    prompt = conversation(service.model.family, asked.messages)
    tokens = asked.max_completion_tokens or asked.max_tokens or 128
    return await _answer(request, asked, [prompt], tokens, chat=True)


def conversation(family: Family, messages: list[Message]) -> str:
    """Write a conversation the way the family was trained to go on with it."""
    if "{role}" not in family.chat_message:
        if any(message.role == "assistant" for message in messages):
            raise Refusal(
                400,
                "single_turn_model",
                "this model answers one question, without a conversation before it: send user "
                "messages only",
            )
        return family.chat("\n\n".join(message.text for message in messages))
    roles = ["system" if message.role == "developer" else message.role for message in messages]
    # A system message replaces the one that a family (Dream) starts with by itself.
    replaced = roles[0] == "system" and "system" in family.chat_start
    text = "" if replaced else family.chat_start
    for role, message in zip(roles, messages, strict=True):
        text += family.chat_message.replace("{role}", role).replace("{content}", message.text)
    return text + family.chat_reply


async def _answer(
    request: Request, asked: _Asked, prompts: list[str], tokens: int, *, chat: bool
) -> Response:
    """Write the texts; what goes to the model is the prompts as they are."""
    service: Service = request.app.state.service
    asked.refuse_unknown()
    if asked.model != service.model_name:
        raise Refusal(404, "model_not_found", f"the model here is {service.model_name}",
                      param="model")  # fmt: skip
    prompts = [prompt for prompt in prompts for _ in range(asked.n)]
    service.limits.check_texts(prompts)
    service.limits.check_tokens(tokens)
    seed = secrets.randbelow(LARGEST_SEED) if asked.seed is None else asked.seed
    settings = GenerateRequest(
        prompt=prompts[0],
        tokens=tokens if tokens <= BLOCK else -(-tokens // BLOCK) * BLOCK,
        temperature=asked.temperature,
        top_p=asked.top_p or 1.0,
        chat=False,
    )
    job = await service.run(make_job, service, prompts, settings, seed)
    assert service.writer is not None
    writing = service.writer.start(job)
    form = Form(service, job, asked, tokens, chat)
    if asked.stream:
        return EventStream(form.events(writing), writing)
    texts = await unless_gone(request, writing, writing.texts())
    return JSONResponse(form.whole(texts))


@dataclass
class Ending:
    """A finished text, cut at the number of tokens asked for."""

    text: str
    tokens: int
    reason: Literal["stop", "length"]


class Form:
    """Writes texts down as OpenAI's clients read them."""

    def __init__(self, service: Service, job: Job, asked: _Asked, tokens: int, chat: bool) -> None:
        self._tokenizer = service.tokenizer
        assert service.model is not None
        self._ends = set(service.model.end_ids)
        self._job, self._tokens, self._chat = job, tokens, chat
        self._usage = asked.stream_options is not None and asked.stream_options.include_usage
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12),
            "object": kind + ".chunk" if chat and asked.stream else kind,
            "created": int(time.time()),
            "model": asked.model,
        }

    def whole(self, texts: list[Generation]) -> dict[str, Any]:
        """Return all the texts at once."""
        endings = [self._ending(text) for text in texts]
        return {
            **self._head,
            "choices": [
                self._choice(index, ending.text, ending.reason, "message")
                for index, ending in enumerate(endings)
            ],
            "usage": self._used(endings),
        }

    async def events(self, writing: Writing) -> AsyncIterator[bytes]:
        """Yield the pieces of the texts as they become final."""
        sent = [""] * len(self._job.prompts)
        async for made in writing.steps():
            if isinstance(made, list):
                endings = [self._ending(text) for text in made]
                for index, ending in enumerate(endings):
                    rest = ending.text[len(sent[index]) :]
                    yield self._chunk(self._choice(index, rest, ending.reason, "delta"))
                if self._usage:
                    yield event({**self._head, "choices": [], "usage": self._used(endings)})
                continue
            for index, text in enumerate(self._final(made)):
                if len(text) > len(sent[index]):
                    piece = text[len(sent[index]) :]
                    yield self._chunk(self._choice(index, piece, None, "delta"))
                    sent[index] = text
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
            length = min(known, self._tokens)
            end = next((at for at in range(length) if ids[at] in self._ends), length)
            texts.append(self._tokenizer.decode(ids[:end]).rstrip("\ufffd"))
        return texts

    def _ending(self, text: Generation) -> Ending:
        """Cut a text that came out longer, because whole blocks are written."""
        if len(text.ids) < self._tokens:
            return Ending(text.text, len(text.ids), "stop")
        return Ending(self._tokenizer.decode(text.ids[: self._tokens]), self._tokens, "length")

    def _used(self, endings: list[Ending]) -> dict[str, int]:
        read = sum(len(ids) for ids in self._tokenizer.encode_many(self._job.prompts))
        written = sum(ending.tokens for ending in endings)
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

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        extra = {"usage": None} if self._usage else {}
        return event({**self._head, "choices": [choice], **extra})
