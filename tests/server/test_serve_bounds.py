"""What a request may multiply is bounded before it is built, and the bounds are in the schema."""

import tracemalloc

import pytest

from dllmark.server.limits import Limits
from dllmark.server.openai_models import MOST_MESSAGES

HELLO = {"role": "user", "content": "Hello"}
COMPLETION = {"model": "tiny", "prompt": "a", "max_tokens": 1}
CHAT = {"model": "tiny", "messages": [HELLO], "max_tokens": 1}

REFUSED = {
    "texts": ("completions", {**COMPLETION, "n": 60_000_000}, 413, "60000000 texts in one request"),
    "answers": ("chat/completions", {**CHAT, "n": 60_000_000}, 413, "60000000 texts"),
    "prompts": ("completions", {**COMPLETION, "prompt": ["a"] * 8, "n": 9}, 413, "72 texts"),
    "drafts": ("completions", {**COMPLETION, "best_of": 60_000_000}, 400, "best_of is not"),
    "messages": ("chat/completions", {**CHAT, "messages": [HELLO] * 1025}, 422, "at most 1024"),
    "parts": (
        "chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 1025}]},
        422,
        "messages.0.content",
    ),
    "tokens of texts": (
        "completions",
        {**COMPLETION, "n": 64, "max_tokens": 512},
        400,
        "64 texts of 512 tokens have 32768 in all, but 8192 are the most",
    ),
    "tokens": ("generate", {"prompt": "a", "tokens": 10**9}, 400, "512 are the most"),
    "steps": ("generate", {"prompt": "a", "steps": 10**9}, 400, "512 are the most"),
    "a list": ("detect", {"text": ["a"] * 65}, 413, "65 texts in one request"),
}


@pytest.mark.parametrize(("path", "body", "status", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_request_cannot_multiply_itself(server, path, body, status, reason):
    tracemalloc.start()
    response = server.post(f"/v1/{path}", **body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (response.status_code, peak < 10_000_000) == (status, True)
    assert reason in response.json()["error"]["message"]


def test_the_schema_shows_the_limits_the_server_was_started_with(serve, key):
    server = serve([key], limits=Limits(characters=11, batch=22, tokens=33))
    schema = server.client.get("/openapi.json").json()
    fields = {
        name: schema["components"]["schemas"][name]["properties"]
        for name in ("DetectRequest", "GenerateRequest", "CompletionRequest", "ChatRequest")
    }
    text, texts = fields["DetectRequest"]["text"]["anyOf"]
    assert (text["maxLength"], texts["maxItems"], texts["items"]["maxLength"]) == (11, 22, 11)
    prompt, prompts = fields["CompletionRequest"]["prompt"]["anyOf"]
    assert (prompt["maxLength"], prompts["maxItems"], prompts["items"]["maxLength"]) == (11, 22, 11)
    assert fields["CompletionRequest"]["n"]["maximum"] == 22
    assert fields["CompletionRequest"]["max_tokens"]["maximum"] == 33
    assert fields["GenerateRequest"]["prompt"]["maxLength"] == 11
    assert fields["GenerateRequest"]["tokens"]["maximum"] == 33
    assert fields["GenerateRequest"]["steps"]["anyOf"][0]["maximum"] == 33
    assert fields["ChatRequest"]["messages"]["maxItems"] == MOST_MESSAGES
    assert "x-limit" not in str(schema)
