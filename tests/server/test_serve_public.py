"""A public server tells no key id and no gamma: not in any answer of any route, right or wrong."""

from dataclasses import replace

import pytest

from dllmark.errors import MismatchError
from dllmark.server.app import make_app
from dllmark.server.service import Service

GENERATION = {"prompt": "Hello", "tokens": 4, "seed": 1}
COMPLETION = {"model": "tiny", "prompt": "Hello", "max_tokens": 4}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}

GOOD = {
    "/v1/detect": [{"text": "Hello"}],
    "/v1/generate": [GENERATION, {**GENERATION, "stream": True}],
    "/v1/completions": [COMPLETION, {**COMPLETION, "stream": True}],
    "/v1/chat/completions": [CHAT, {**CHAT, "stream": True}],
}

BAD = [
    {},
    {"text": "Hello", "explain": True},
    {"text": "Hello", "payload": True},
    {**GENERATION, "delta": 1},
    {**GENERATION, "prompt": " "},
    {**GENERATION, "tokens": 10**6},
    {**COMPLETION, "model": "other"},
    {**COMPLETION, "n": 1000},
    {**CHAT, "logit_bias": {"1": 1}},
]


@pytest.fixture
def keys(key, other_key):
    """Keys whose gammas stand in no answer by chance."""
    return [replace(key, gamma=0.4937), replace(other_key, gamma=0.2713)]


def routes(server):
    """Every method and path: those in the schema, and the files of the page."""
    paths = server.client.get("/openapi.json").json()["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    pages = {
        ("GET", route.path) for route in make_app(server.service).routes if hasattr(route, "path")
    }
    assert {"/", "/docs", "/page/page.js", "/openapi.json"} <= {path for _, path in pages}
    assert set(GOOD) == {path for method, path in described if method == "POST"}
    return described | pages


def answers(server, marked):
    """Every route's answers to good and bad requests."""
    for method, path in routes(server):
        good = GOOD.get(path, [None])
        for body in [*good, *BAD] if method == "POST" else good:
            response = server.client.request(method, path, json=body)
            assert response.status_code == 200 or body not in good, response.text
            yield f"{method} {path} {body}", response
    yield "a marked text", server.post("/v1/detect", text=marked)
    yield "no route", server.client.get("/nonsense")


def tells(response, keys):
    """Whether an answer holds a key's id or gamma."""
    secrets = [word for key in keys for word in (key.id, str(key.gamma))]
    return any(word in f"{response.headers}{response.text}" for word in secrets)


def test_no_answer_of_a_public_server_tells_a_key_id_or_gamma(serve, keys, marked):
    server = serve(keys, public=True)
    walked = dict(answers(server, marked))
    assert len(walked) > 40
    assert [what for what, response in walked.items() if tells(response, keys)] == []


def test_the_same_search_finds_them_on_a_server_that_is_not_public(serve, keys, marked):
    """Or the search would prove nothing."""
    server = serve(keys)
    telling = {what for what, response in answers(server, marked) if tells(response, keys)}
    for path in ("GET /v1/server", "POST /v1/detect", "POST /v1/generate", "POST /v1/completions"):
        assert any(what.startswith(path) for what in telling)


def test_an_error_about_keys_is_not_told(serve, keys, monkeypatch):
    def check(*_, **__):
        raise MismatchError(f"key {keys[0].id} is for another tokenizer")

    monkeypatch.setattr(Service, "check", check)
    response = serve(keys, with_model=False, public=True).post("/v1/detect", text="Hello")
    assert (response.status_code, tells(response, keys)) == (500, False)
    assert response.json()["error"]["message"] == "the server failed (MismatchError)"
