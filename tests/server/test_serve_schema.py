"""Requests made from the OpenAPI schema: whatever fits it, or nearly, is answered as it says."""

import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from serving import serving

from dllmark.relation.payload import Payloads
from dllmark.server.limits import Limits
from dllmark.server.service import Service

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what schemathesis imports is not ours
    import schemathesis
    from schemathesis import GenerationMode, checks

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def schema(key, tokenizer, model):
    """The schema of a server that writes short texts."""
    limits = Limits(characters=200, tokens=8, batch=2, per_minute=1_000_000)
    service = Service([key], tokenizer, model, limits, payloads=Payloads(6))
    with serving(service) as served:
        yield schemathesis.openapi.from_url(f"{served.url}/openapi.json")


def make_short(body):
    """Ask for the model there is and a short text, so that not all is refused."""
    if isinstance(body, dict) and {"prompt", "messages"} & body.keys():
        body.pop("max_completion_tokens", None)
        body.update({"max_tokens": 2, "model": "tiny"} if "model" in body else {"tokens": 2})


@pytest.mark.parametrize("mode", GenerationMode, ids=["as the schema says", "against the schema"])
def test_every_operation_answers_as_its_schema_says(schema, mode):
    tried = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and operation.method == "get":
            continue  # these take nothing that could be wrong

        @settings(
            max_examples=15, derandomize=True, database=None, deadline=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers(case):
            if mode is GenerationMode.POSITIVE:
                make_short(case.body)
            case.call_and_validate(checks=CHECKS)

        answers()
        tried.append(operation.path)
    assert {"/v1/detect", "/v1/generate", "/v1/completions", "/v1/chat/completions"} <= set(tried)
