"""POST /v1/generate: write a text, step by step if asked to."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from dllmark.marking.strategies import DEFAULT, MAX_DELTA
from dllmark.relation.greenlist import HashedGreenList
from dllmark.server.detect_api import CoarseEvidence, Evidence
from dllmark.server.jobs import Job, Writing
from dllmark.server.service import Service
from dllmark.server.streams import EventStream, event, unless_gone

if TYPE_CHECKING:
    from dllmark.sampling import Generation, Step

router = APIRouter(tags=["generation"])

BLOCK = 32
TEMPERATURE = 0.8
LARGEST_SEED = 2**53 - 1
"""The largest whole number that every JSON reader keeps."""

StrategyName = Literal[
    "kgw", "predictive", "bidirectional", "predictive-bidirectional", "expected-bidirectional",
    "guided-bidirectional",
]  # fmt: skip
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)


class GenerateRequest(BaseModel):
    """A prompt, the mark, and how to write."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[str, Field(min_length=1)]
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
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = TEMPERATURE
    top_p: Annotated[
        float, Field(gt=0, le=1, allow_inf_nan=False, description="Draw from the likeliest tokens.")
    ] = 1.0
    tokens: Annotated[int, Field(ge=1, description="Up to 32, or a multiple of 32.")] = 128
    steps: Annotated[int | None, Field(ge=1, description="Else half as many as tokens.")] = None
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
    watermark: dict[str, Any] | None
    detection: Evidence | CoarseEvidence


STREAM = {
    "description": "The text, or with `stream` the events `start`, `step` (one for each step), "
    "`end` (with the text) and, where something breaks, `error`.",
    "content": {"text/event-stream": {}},
}


@router.post("/v1/generate", response_model=GenerateResponse, responses={200: STREAM})
async def generate(asked: GenerateRequest, request: Request) -> Response:
    """Write a text with the server's model, marked with its first key.

    With `stream`, each event `step` has the tokens revealed in that step, with their positions,
    and the colours of the pairs that are now known. A public server decides itself about the
    mark, and tells no colours.
    """
    service: Service = request.app.state.service
    service.refuse_if_public(
        strategy=asked.strategy, delta=asked.delta is not None, watermark=not asked.watermark
    )
    service.limits.check_texts([asked.prompt])
    service.limits.check_tokens(asked.tokens)
    seed = secrets.randbelow(LARGEST_SEED) if asked.seed is None else asked.seed
    job = await service.run(make_job, service, [asked.prompt], asked, seed)
    assert service.writer is not None
    writing = service.writer.start(job)
    if asked.stream:
        return EventStream(_events(service, writing, job), writing)
    [text] = await unless_gone(request, writing, writing.texts())
    return JSONResponse(await _ended(service, text, seed))


def make_job(service: Service, prompts: list[str], asked: GenerateRequest, seed: int) -> Job:
    """Return the job of a request; what cannot be written raises here, before it waits."""
    from dllmark.marking.watermark import Watermark
    from dllmark.sampling import Llada, check_prompts
    from dllmark.sampling.schedule import check_length

    assert service.model is not None
    sampler = Llada(
        steps=asked.steps or max(1, asked.tokens // 2),
        block_length=min(BLOCK, asked.tokens),
        temperature=asked.temperature,
        top_p=asked.top_p,
        suppress_end=asked.suppress_end,
    )
    check_length(sampler, asked.tokens)
    check_prompts(service.model, prompts, asked.tokens, asked.chat)
    watermark = None
    if asked.watermark:
        strategy = asked.strategy or DEFAULT.name
        watermark = Watermark(service.key, strategy, asked.delta, tokenizer=service.tokenizer)
    return Job(prompts, watermark, sampler, asked.tokens, asked.chat, seed)


async def _events(service: Service, writing: Writing, job: Job) -> AsyncIterator[bytes]:
    """Yield the start, each step, and the end with the text."""
    yield event({"tokens": job.tokens, "steps": job.sampler.steps, "seed": job.seed}, "start")
    canvas = Colours(service)
    async for made in writing.steps():
        if isinstance(made, list):
            yield event(await _ended(service, made[0], job.seed), "end")
        else:
            yield event(canvas.step(made), "step")


async def _ended(service: Service, text: Generation, seed: int) -> dict[str, Any]:
    """Return a finished text with its verdict."""
    results = await service.run(service.check, [text.text])
    service.count(results)
    return {
        "text": text.text,
        "tokens": len(text.ids),
        "seed": seed,
        "known_left": text.known_left,
        "watermark": text.watermark,
        "detection": results[0],
    }


class Colours:
    """What each step shows: the tokens that are new, and the colours that they settle.

    A token has the colour of its pair with the token before, so it is known once both are.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._green = HashedGreenList(service.key, service.tokenizer.vocab_size)
        self._known: np.ndarray[Any, np.dtype[np.bool_]] | None = None

    def step(self, step: Step) -> dict[str, Any]:
        """Return a step of the first text as JSON values; positions count from the prompt's end."""
        ids = step.tokens[0, step.start :].cpu().numpy().astype(np.int64)
        known = step.revealed[0, step.start :].cpu().numpy()
        before = np.zeros_like(known) if self._known is None else self._known
        self._known = known
        decode = self._service.tokenizer.decode
        new = np.flatnonzero(known & ~before).tolist()
        shown = [{"position": at, "text": decode([ids[at]])} for at in new]
        answer = {"number": step.number, "total": step.total, "revealed": shown}
        if not self._service.public:
            answer["marks"] = self._marks(ids, known, before)
        return answer

    def _marks(self, ids: Any, known: Any, before: Any) -> list[dict[str, Any]]:
        """Return the colours that became known; the first token ends no pair of the text."""
        settled = known[1:] & known[:-1] & ~(before[1:] & before[:-1])
        right = np.flatnonzero(settled) + 1
        scored = self._service.tokenizer.scored
        counts = (scored[ids[right - 1]] & scored[ids[right]]).tolist()
        green = self._green.pairs(ids[right - 1], ids[right]).tolist()
        names = ["green" if colour else "red" for colour in green]
        found = zip(right.tolist(), names, counts, strict=True)
        marks = [
            {"position": at, "mark": name if counted else "not scored"}
            for at, name, counted in found
        ]
        if known[0] and not before[0]:
            marks.insert(0, {"position": 0, "mark": "not scored"})
        return marks
