"""POST /v1/detect: say of texts whether one of the server's keys marked them."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dllmark.detection.detector import Scoring, Span, TokenMark, Verdict
from dllmark.detection.words import Strength
from dllmark.server.limits import shown_limit
from dllmark.server.refusal import Refusal
from dllmark.server.service import Service

router = APIRouter(tags=["detection"])

Results = list[dict[str, Any]]
Text = Annotated[str, Field(json_schema_extra=shown_limit("maxLength", "characters"))]


class DetectRequest(BaseModel):
    """One text or several, and how to score them."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[
        Text | Annotated[list[Text], Field(json_schema_extra=shown_limit("maxItems", "batch"))],
        Field(description="One text, or a list of texts."),
    ]
    fpr: Annotated[
        float | None,
        Field(gt=0, lt=1, description="The verdict's false-positive rate; else the server's."),
    ] = None
    scoring: Annotated[
        Scoring | None,
        Field(description="Score each distinct pair once (unique, the default), or every pair."),
    ] = None
    payload: Annotated[
        bool,
        Field(description="Look for texts with any payload of the server's key, and say which."),
    ] = False
    explain: Annotated[bool, Field(description="Also give every token with its colour.")] = False
    spans: Annotated[bool, Field(description="Also give the stretches that are marked.")] = False


class Evidence(BaseModel):
    """A verdict and all that it rests on. "watermarked" means consistent with the key."""

    verdict: Verdict
    strength: Annotated[
        Strength | None, Field(description="How strong the evidence of a watermarked text is.")
    ]
    conclusion: Annotated[
        str, Field(description="Verdict, strength or power, and rate, in a few words to show.")
    ]
    z: float
    p_value: Annotated[float, Field(description="Corrected for the number of keys tried.")]
    pairs: int
    green: int
    green_fraction: float
    gamma: float
    expected: Annotated[float, Field(description="The share that is green without the mark.")]
    expected_if_marked: Annotated[
        float, Field(description="The share that is taken to be green in marked texts.")
    ]
    power: Annotated[
        float, Field(description="How many marked texts with as many pairs would be found.")
    ]
    pairs_needed: Annotated[int, Field(description="Pairs at which 95 % of them would be.")]
    fpr: float
    scoring: Scoring
    key_id: Annotated[str, Field(description="The key that fits best.")]
    label: Annotated[
        str | None, Field(description="What a ring calls the key that marked the text.")
    ] = None
    payload: Annotated[
        int | str | None,
        Field(description="If looked for: the payload; null where there is none or it is unclear."),
    ] = None
    scheme: str
    keys_tried: Annotated[int, Field(description="Keys, or payloads of one.")]
    tokens: list[TokenMark] | None = None
    spans: list[Span] | None = None


class CoarseEvidence(BaseModel):
    """What a public server tells: the verdict, and a class of p-values."""

    verdict: Verdict
    strength: Strength | None
    p_value_at_most: float


class DetectResponse(BaseModel):
    """A result for each text, in their order."""

    results: list[Evidence | CoarseEvidence]


@router.post("/v1/detect", response_model=DetectResponse)
async def detect(body: DetectRequest, request: Request) -> Response:
    """Say of each text whether it carries the mark of one of the keys.

    With several keys the one that fits best is named, and p-values are corrected for the number of
    keys. With `payload`, the payload that fits best is named, and p-values are corrected for all of
    them. A public server takes no options, and answers with a verdict and a class of p-values.
    """
    service: Service = request.app.state.service
    service.refuse_if_public(
        fpr=body.fpr, scoring=body.scoring, payload=body.payload, explain=body.explain,
        spans=body.spans,
    )  # fmt: skip
    texts = [body.text] if isinstance(body.text, str) else body.text
    service.limits.check_texts(texts)
    if body.payload:
        if body.scoring == "all":
            raise Refusal(400, "invalid_body", "payloads are found by distinct pairs only: leave "
                          "out scoring", param="scoring")  # fmt: skip
        service.check_payload_work(texts)
    results, content = await service.run(_answer, service, texts, body)
    service.count(results)
    return Response(content, media_type="application/json")


def _answer(service: Service, texts: list[str], body: DetectRequest) -> tuple[Results, bytes]:
    """Return the results, and as JSON: a long explanation takes a while to write down."""
    results = service.check(
        texts, body.fpr, body.scoring or "unique", payload=body.payload, explain=body.explain,
        spans=body.spans,
    )  # fmt: skip
    return results, json.dumps({"results": results}).encode()
