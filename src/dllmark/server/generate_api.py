"""POST /v1/generate: write a text, and show each step to those who want to see them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from dllmark.detection.detector import Detector, Mark
from dllmark.marking.strategies import JOINT_DEFAULT, MAX_DELTA, STRATEGIES
from dllmark.relation.key import Identity, WatermarkKey
from dllmark.relation.tokenizer import Ids
from dllmark.sampling.settings import (
    MAX_TEMPERATURE,
    TEMPERATURE,
    TOKENS,
    check_length,
    choose_strategy,
    default_llada,
    steps_for,
)
from dllmark.server.detect_api import CoarseEvidence, Evidence, Text
from dllmark.server.generation_queue import GenerateArguments, QueuedGeneration, Waiting
from dllmark.server.limits import shown_limit
from dllmark.server.refusal import Refusal
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

LONGEST_RUN = 64
"""The largest `no_repeat_ngram`; a step takes as many comparisons."""

TokenCount = Annotated[int, Field(ge=1, json_schema_extra=shown_limit("maximum", "tokens"))]


class GenerateRequest(BaseModel):
    """A prompt, the mark, and how to write."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[Text, Field(min_length=1)]
    watermark: Annotated[bool, Field(description="false writes without a mark.")] = True
    compare: Annotated[
        bool,
        Field(description="Also write it without the mark, from the same noise."),
    ] = False
    strategy: Annotated[
        StrategyName | None,
        Field(description=f"Else {JOINT_DEFAULT.name}."),
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
    steps: Annotated[TokenCount | None, Field(description="Else by the model.")] = None
    seed: Annotated[int | None, Field(ge=0, le=LARGEST_SEED, description="Else at random.")] = None
    chat: Annotated[bool, Field(description="false continues the prompt as text.")] = True
    suppress_end: Annotated[bool, Field(description="Write all the tokens, end no earlier.")] = (
        False
    )
    no_repeat_ngram: Annotated[
        int | None,
        Field(
            ge=0,
            le=LONGEST_RUN,
            description="Write no run of so many tokens twice; 0 allows it. Else by the model.",
        ),
    ] = None
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
    unmarked: Annotated[
        GenerateResponse | None, Field(description="With `compare`: the text without the mark.")
    ] = None


STREAM = {
    "description": "The text, or with `stream` the events `start`, `waiting` (while others come "
    "first), `step` (one for each step), `end` (with the text) and, where something breaks, "
    "`error`.",
    "content": {"text/event-stream": {}},
}


@router.post("/v1/generate", response_model=GenerateResponse, responses={200: STREAM})
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Write a text with the server's model, marked with its first key or its ring's current one.

    With `stream`, each event `step` has the tokens revealed in that step, with their positions,
    the colours that changed and what the detector says so far; the event `end` has the final
    colours in `detection.tokens`. With `compare` both also have `unmarked`: the same of the text
    without the mark. A public server decides itself about the mark, and tells neither its identity
    nor colours.
    """
    service: Service = request.app.state.service
    service.refuse_if_public(
        strategy=body.strategy, delta=body.delta is not None, watermark=not body.watermark,
        compare=body.compare,
    )  # fmt: skip
    if body.compare and not body.watermark:
        message = "compare writes a text with the mark and one without: leave out watermark"
        raise Refusal(400, "nothing_to_compare", message, param="compare")
    service.limits.check_texts([body.prompt], each=1 + body.compare)
    service.limits.check_tokens(body.tokens, texts=1 + body.compare)
    service.limits.check_steps(body.steps or 1)
    arguments = await service.run(make_arguments, service, [body.prompt], body)
    assert service.queue is not None
    generation = service.queue.start(arguments)
    if body.stream:
        return EventStream(_events(service, generation, arguments), generation)
    texts = await unless_gone(request, generation, generation.texts())
    return JSONResponse(await _finished(service, texts, arguments.seed))


def make_arguments(
    service: Service, prompts: list[str], body: GenerateRequest
) -> GenerateArguments:
    """Return what to generate with; what cannot be written raises here, before it waits."""
    from dllmark.marking.watermark import Watermark
    from dllmark.sampling.texts import check_prompts

    assert service.model is not None
    sampler = default_llada(
        service.model.name,
        body.tokens,
        steps=body.steps,
        temperature=body.temperature,
        top_p=body.top_p,
        suppress_end=body.suppress_end,
        no_repeat_ngram=body.no_repeat_ngram,
    )
    check_length(sampler, body.tokens)
    check_prompts(service.model, prompts, body.tokens, body.chat)
    key, watermark = service.key, None
    if body.watermark:
        strategy = choose_strategy(body.strategy, sampler).name
        watermark = Watermark(key, strategy, body.delta, tokenizer=service.tokenizer)
    seed = secrets.randbelow(LARGEST_SEED) if body.seed is None else body.seed
    return GenerateArguments(
        prompts, key, watermark, sampler, body.tokens, body.chat, seed, body.compare
    )


async def _events(
    service: Service, generation: QueuedGeneration, arguments: GenerateArguments
) -> AsyncIterator[Event]:
    """Yield the start, what it waits for, each step, and the end with the text."""
    tokens, seed = arguments.tokens, arguments.seed
    steps = steps_for(arguments.sampler, tokens)
    yield event({"tokens": tokens, "steps": steps, "seed": seed}, "start")
    views = [StepView(service, arguments.key, tokens, row) for row in range(1 + arguments.compare)]
    async for step in generation.steps():
        if isinstance(step, Waiting):
            yield event(asdict(step), "waiting")
        elif isinstance(step, list):
            yield event(await _finished(service, step, seed, explain=True), "end")
        else:
            shown = [view.after(step) for view in views]
            yield event(_together({"number": step.number, "total": step.total}, shown), "step")


async def _finished(
    service: Service, texts: list[Generation], seed: int, explain: bool = False
) -> dict[str, Any]:
    """Return a finished text with its verdict, and the one without the mark if there is one."""
    written = [text.text for text in texts]
    results = await service.run(lambda: service.check(written, explain=explain))
    service.count(results)
    return _together(
        {},
        [
            {
                "text": text.text,
                "tokens": len(text.ids),
                "seed": seed,
                "known_left": text.known_left,
                "watermark": None if service.public else text.watermark,
                "detection": result,
            }
            for text, result in zip(texts, results, strict=True)
        ],
    )


def _together(head: dict[str, Any], texts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is said of a text, with what is said of the one without the mark."""
    first, *unmarked = texts
    return {**head, **first, **({"unmarked": unmarked[0]} if unmarked else {})}


class StepView:
    """What each step shows of a text: the new tokens, the colours that changed, the evidence.

    The detector colours what is there so far, by its own rule: masks are special tokens, which are
    not scored. A pair counts where it stands first in the text, so one that is written again
    further left gives its colour to that place.
    """

    def __init__(self, service: Service, key: WatermarkKey, tokens: int, row: int = 0) -> None:
        assert service.model is not None
        self._row = row
        self._public = service.public
        self._end_ids = service.model.end_ids
        self._detector = Detector(key, service.tokenizer, fpr=service.fpr)
        self._known = np.zeros(tokens, dtype=np.bool_)
        self._marks: list[Mark] = ["not scored"] * tokens

    def after(self, step: Step) -> dict[str, Any]:
        """Return a step as JSON values; positions count from the prompt's end."""
        ids = step.tokens[self._row, step.start :].cpu().numpy().astype(np.int64)
        known = step.revealed[self._row, step.start :].cpu().numpy()
        decode = self._detector.tokenizer.decode
        revealed = [
            {"position": at, "text": decode([ids[at]])}
            for at in np.flatnonzero(known & ~self._known).tolist()
        ]
        self._known = known
        answer: dict[str, Any] = {"revealed": revealed}
        if not self._public:
            ids = ids[: self._end(ids)]
            answer["marks"] = self._changed_marks(ids)
            answer["detection"] = self._detector.detect(ids).to_dict()
        return answer

    def _end(self, ids: Ids) -> int:
        """Return where a text ends, and the white space before its end begins."""
        tokenizer = self._detector.tokenizer
        end = next((at for at, id_ in enumerate(ids) if id_ in self._end_ids), len(ids))
        while (
            end and tokenizer.scored[ids[end - 1]] and not tokenizer.decode([ids[end - 1]]).strip()
        ):
            end -= 1
        return end

    def _changed_marks(self, ids: Ids) -> list[dict[str, Any]]:
        """Return the colours that changed."""
        scored, green = self._detector.colours(ids)
        marks: list[Mark] = ["not scored"] * len(self._marks)
        for pair in np.flatnonzero(scored).tolist():
            marks[pair + 1] = "green" if green[pair] else "red"
        changed = [
            {"position": at, "mark": mark}
            for at, (mark, before) in enumerate(zip(marks, self._marks, strict=True))
            if mark != before
        ]
        self._marks = marks
        return changed
