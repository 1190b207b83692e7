"""POST /v1/generate: write a text, and show each step to those who want to see them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from dllmark.detection.detector import Detector, Mark
from dllmark.marking.strategies import DEFAULT, MAX_DELTA, STRATEGIES
from dllmark.relation.key import Identity, WatermarkKey
from dllmark.sampling.settings import (
    MAX_TEMPERATURE,
    TEMPERATURE,
    TOKENS,
    Llada,
    check_length,
    default_steps,
)
from dllmark.server.detect_api import CoarseEvidence, Evidence, Text
from dllmark.server.generation_queue import GenerateArguments, QueuedGeneration
from dllmark.server.limits import shown_limit
from dllmark.server.service import Service
from dllmark.server.streams import Event, EventStream, event, unless_gone

if TYPE_CHECKING:
    from dllmark.sampling.texts import Generation, Step

    StrategyName = str
else:
    StrategyName = Literal[tuple(STRATEGIES)]

router = APIRouter(tags=["generation"])

LARGEST_SEED = 2**53 - 1
"""The largest whole number that every JSON reader keeps."""

TokenCount = Annotated[int, Field(ge=1, json_schema_extra=shown_limit("maximum", "tokens"))]


class GenerateRequest(BaseModel):
    """A prompt, the mark, and how to write."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[Text, Field(min_length=1)]
    watermark: Annotated[bool, Field(description="false writes without a mark.")] = True
    strategy: Annotated[
        StrategyName | None, Field(description=f"Which neighbours count; {DEFAULT.name}.")
    ] = None
    delta: Annotated[
        float | None,
        Field(
            ge=0,
            le=MAX_DELTA,
            allow_inf_nan=False,
            description="Else the strategy's own.",
        ),
    ] = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False)] = (
        TEMPERATURE
    )
    top_p: Annotated[
        float, Field(gt=0, le=1, allow_inf_nan=False, description="Draw from the likeliest tokens.")
    ] = 1.0
    tokens: TokenCount = TOKENS
    steps: Annotated[TokenCount | None, Field(description="Else half as many as tokens.")] = None
    seed: Annotated[int | None, Field(ge=0, le=LARGEST_SEED, description="Else at random.")] = None
    chat: Annotated[bool, Field(description="false continues the prompt as text.")] = True
    suppress_end: Annotated[bool, Field(description="Write all the tokens, end no earlier.")] = (
        False
    )
    stream: Annotated[bool, Field(description="Send each step as a server-sent event.")] = False


class GenerateResponse(BaseModel):
    """A text, whose mark it carries, and what the detector says of it."""

    text: str
    tokens: int
    seed: int
    known_left: Annotated[
        float, Field(description="The share of tokens chosen when the token before was known.")
    ]
    watermark: Annotated[
        Identity | None, Field(description="null without a mark, and on a public server.")
    ]
    detection: Evidence | CoarseEvidence


STREAM = {
    "description": "The text, or with `stream` the events `start`, `step` (one for each step), "
    "`end` (with the text) and, where something breaks, `error`.",
    "content": {"text/event-stream": {}},
}


@router.post("/v1/generate", response_model=GenerateResponse, responses={200: STREAM})
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Write a text with the server's model, marked with its first key or its ring's current one.

    With `stream`, each event `step` has the tokens revealed in that step, with their positions,
    and the colours that changed; the event `end` has the final colours in `detection.tokens`. A
    public server decides itself about the mark, and tells neither its identity nor colours.
    """
    service: Service = request.app.state.service
    service.refuse_if_public(
        strategy=body.strategy, delta=body.delta is not None, watermark=not body.watermark
    )
    service.limits.check_texts([body.prompt])
    service.limits.check_tokens(body.tokens)
    service.limits.check_steps(body.steps or 1)
    arguments = await service.run(make_arguments, service, [body.prompt], body)
    assert service.queue is not None
    generation = service.queue.start(arguments)
    if body.stream:
        return EventStream(_events(service, generation, arguments), generation)
    [text] = await unless_gone(request, generation, generation.texts())
    return JSONResponse(await _finished(service, text, arguments.seed))


def make_arguments(
    service: Service, prompts: list[str], body: GenerateRequest
) -> GenerateArguments:
    """Return what to generate with; what cannot be written raises here, before it waits."""
    from dllmark.marking.watermark import Watermark
    from dllmark.sampling.texts import check_prompts

    assert service.model is not None
    sampler = Llada(
        steps=body.steps or default_steps(body.tokens),
        temperature=body.temperature,
        top_p=body.top_p,
        suppress_end=body.suppress_end,
    )
    check_length(sampler, body.tokens)
    check_prompts(service.model, prompts, body.tokens, body.chat)
    key, watermark = service.key, None
    if body.watermark:
        strategy = body.strategy or DEFAULT.name
        watermark = Watermark(key, strategy, body.delta, tokenizer=service.tokenizer)
    seed = secrets.randbelow(LARGEST_SEED) if body.seed is None else body.seed
    return GenerateArguments(prompts, key, watermark, sampler, body.tokens, body.chat, seed)


async def _events(
    service: Service, generation: QueuedGeneration, arguments: GenerateArguments
) -> AsyncIterator[Event]:
    """Yield the start, each step, and the end with the text."""
    tokens, steps, seed = arguments.tokens, arguments.sampler.steps, arguments.seed
    yield event({"tokens": tokens, "steps": steps, "seed": seed}, "start")
    view = StepView(service, arguments.key, tokens)
    async for step in generation.steps():
        if isinstance(step, list):
            yield event(await _finished(service, step[0], seed, explain=True), "end")
        else:
            yield event(view.after(step), "step")


async def _finished(
    service: Service, text: Generation, seed: int, explain: bool = False
) -> dict[str, Any]:
    """Return a finished text with its verdict."""
    results = await service.run(lambda: service.check([text.text], explain=explain))
    service.count(results)
    return {
        "text": text.text,
        "tokens": len(text.ids),
        "seed": seed,
        "known_left": text.known_left,
        "watermark": None if service.public else text.watermark,
        "detection": results[0],
    }


class StepView:
    """What each step shows: the tokens that are new, and the colours that changed.

    The detector colours what is there so far, by its own rule: masks are special tokens, which are
    not scored. A pair counts where it stands first in the text, so one that is written again
    further left gives its colour to that place.
    """

    def __init__(self, service: Service, key: WatermarkKey, tokens: int) -> None:
        assert service.model is not None
        self._public = service.public
        self._end_ids = service.model.end_ids
        self._detector = Detector(key, service.tokenizer)
        self._known = np.zeros(tokens, dtype=np.bool_)
        self._marks: list[Mark] = ["not scored"] * tokens

    def after(self, step: Step) -> dict[str, Any]:
        """Return a step of the first text as JSON values; positions count from the prompt's end."""
        ids = step.tokens[0, step.start :].cpu().numpy().astype(np.int64)
        known = step.revealed[0, step.start :].cpu().numpy()
        decode = self._detector.tokenizer.decode
        revealed = [
            {"position": at, "text": decode([ids[at]])}
            for at in np.flatnonzero(known & ~self._known).tolist()
        ]
        self._known = known
        answer = {"number": step.number, "total": step.total, "revealed": revealed}
        if not self._public:
            answer["marks"] = self._changed_marks(ids)
        return answer

    def _changed_marks(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> list[dict[str, Any]]:
        """Return the colours that changed, up to the text's end and the white space before it."""
        tokenizer = self._detector.tokenizer
        end = next((at for at, id_ in enumerate(ids) if id_ in self._end_ids), len(ids))
        while (
            end and tokenizer.scored[ids[end - 1]] and not tokenizer.decode([ids[end - 1]]).strip()
        ):
            end -= 1
        scored, green = self._detector.colours(ids[:end])
        marks: list[Mark] = ["not scored"] * len(ids)
        for pair in np.flatnonzero(scored).tolist():
            marks[pair + 1] = "green" if green[pair] else "red"
        changed = [
            {"position": at, "mark": mark}
            for at, (mark, before) in enumerate(zip(marks, self._marks, strict=True))
            if mark != before
        ]
        self._marks = marks
        return changed
