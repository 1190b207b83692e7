"""`--upstream`: a dllmark server writes behind this one; limits, access and detection are here."""

import json
import logging
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import openai
import pytest
from serving import serving

from dllmark import Detector
from dllmark.errors import DllmarkError, InputError
from dllmark.server.access import Tokens
from dllmark.server.limits import Limits
from dllmark.server.service import Service
from dllmark.server.upstream import Upstream

SECRET = "sk-the-upstreams-own-key"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def door(start, key, tokenizer):
    """Start a server without a model before another one."""

    def door(url, tokens=None, headers=None, keys=(key,), seconds=60.0, api_key=None, **options):
        upstream = Upstream(f"{url}/v1", api_key, seconds)
        service = Service(list(keys), tokenizer, upstream=upstream, **options)
        return start(service, tokens, headers=headers)

    return door


@pytest.fixture
def client(door, server):
    """OpenAI's client at a door before the tiny model."""
    url = door(server.url).url
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@contextmanager
def odd_server(answer):
    """A server that answers every request as `answer(handler)` does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.body = self.rfile.read(int(self.headers["content-length"]))
            answer(self)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def says(status, body, **headers):
    """An answer of an odd server."""

    def answer(handler):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            handler.send_header(name.replace("_", "-"), str(value))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def test_texts_come_from_the_upstream_with_its_mark(client, server, key):
    request = {"prompt": "Once upon a time", "temperature": 0.8, "seed": 1, "max_tokens": 24}
    through = client.completions.with_raw_response.create(model="tiny", **request)
    [choice] = through.parse().choices
    own = server.post("/v1/completions", model="tiny", **request).json()
    assert choice.text == own["choices"][0]["text"]
    assert Detector(key).detect(choice.text).green_fraction > 0.6
    assert through.headers["x-dllmark-verdict"] == server.detect(choice.text)["verdict"]
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_chat_and_its_stream_are_passed_on(client, server):
    request, tokens = {**CHAT, "seed": 2}, 40  # more than a block: one is sent before the next
    own = server.post("/v1/chat/completions", **request, max_tokens=tokens).json()
    whole = client.chat.completions.create(**request, max_completion_tokens=tokens)
    assert whole.choices[0].message.content == own["choices"][0]["message"]["content"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(**request, max_tokens=tokens, **options)
    pieces = [chunk.choices[0].delta.content for chunk in chunks]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 2
    assert last.usage == whole.usage


@pytest.mark.parametrize(("known", "verdict"), [(True, "watermarked"), (False, "not detected")])
def test_what_comes_back_is_counted_by_its_verdict(
    door, key, other_key, marked, logged, known, verdict
):
    def answer(handler):
        usage = {"prompt_tokens": 1, "completion_tokens": 200, "total_tokens": 201}
        choices = [{"index": 0, "text": marked, "finish_reason": "stop"}]
        whole = {"object": "text_completion", "choices": choices, "usage": usage}
        if not json.loads(handler.body).get("stream"):
            return says(200, whole)(handler)
        pieces = [
            {"choices": [{"index": 0, "text": marked[:100]}]},
            {"choices": [{"index": 0, "text": marked[100:]}]},
            {"choices": [], "usage": usage},
        ]
        data = "".join(f"data: {each}\n\n" for each in (*map(json.dumps, pieces), "[DONE]"))
        return says(200, data.encode(), Content_Type="text/event-stream")(handler)

    request = {"model": "tiny", "prompt": "Once", "max_tokens": 200}
    with odd_server(answer) as url:
        through = door(url, keys=[key if known else other_key])
        whole = through.post("/v1/completions", **request)
        assert whole.headers["x-dllmark-verdict"] == verdict
        with through.client.stream(
            "POST", "/v1/completions", json={**request, "stream": True}
        ) as response:
            assert response.read().endswith(b"data: [DONE]\n\n")
    assert through.metric("dllmark_upstream_texts_total", verdict=verdict) == 2
    assert through.metric("dllmark_tokens_total") == 2 * 200
    assert through.metric("dllmark_generations_total", outcome="finished") == 2
    warnings = [each for each in logged.records if each.levelno == logging.WARNING]
    assert len(warnings) == (0 if known else 2)
    assert all("none of the marks" in each.getMessage() for each in warnings)


def test_detection_is_here_and_the_server_names_the_upstream(door, server, marked):
    through = door(server.url)
    assert through.detect(marked)["verdict"] == "watermarked"
    info = through.client.get("/v1/server").json()
    assert (info["model"], info["upstream"]) == (None, f"{server.url}/v1")
    assert server.client.get("/v1/server").json()["upstream"] is None
    assert through.post("/v1/generate", prompt="Hi").status_code == 404


def test_a_public_server_names_neither_the_upstream_nor_its_key(door, server):
    through = door(server.url, public=True)
    assert through.client.get("/v1/server").json()["upstream"] is None
    answer = through.post("/v1/chat/completions", **CHAT, max_tokens=4)
    assert "watermark" not in answer.json()
    assert answer.headers["x-dllmark-verdict"] == "too short"
    body = {**CHAT, "max_tokens": 4, "stream": True}
    with through.client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert "watermark" not in response.read().decode()


def test_limits_are_this_servers(door, server):
    through = door(server.url, limits=Limits(tokens=8, batch=2, body=2000, characters=50))
    refused = [
        ({**CHAT, "max_tokens": 9}, "too_many_tokens"),
        ({**CHAT, "max_completion_tokens": 9}, "too_many_tokens"),
        (CHAT, "too_many_tokens"),  # the default is more than that
        ({**CHAT, "max_tokens": 8, "n": 3}, "too_many_texts"),
        ({**CHAT, "max_tokens": 8, "stop": "x"}, "unsupported_option"),
        ({"model": "tiny", "messages": [{"role": "user", "content": "x" * 51}], "max_tokens": 8},
         "text_too_long"),
        ({**CHAT, "user": "x" * 2000}, "body_too_large"),
    ]  # fmt: skip
    for body, code in refused:
        assert through.post("/v1/chat/completions", **body).json()["error"]["code"] == code
    assert through.post("/v1/chat/completions", **CHAT, max_tokens=8).status_code == 200


def test_a_token_is_asked_for_here_and_not_passed_on(door, server, key, tokenizer, model):
    upstream = Service([key], tokenizer, model)
    with serving(upstream, Tokens([SECRET])) as behind:
        through = door(
            behind.url, Tokens(["a-token-of-this-server"]), {"Authorization": "Bearer wrong"},
            api_key=SECRET,
        )  # fmt: skip
        body = {**CHAT, "max_tokens": 4}
        assert through.post("/v1/chat/completions", **body).status_code == 401
        own = {"Authorization": "Bearer a-token-of-this-server"}
        answer = through.client.post("/v1/chat/completions", json=body, headers=own)
        assert answer.status_code == 200


def test_a_key_that_the_upstream_refuses_is_not_the_clients_fault(door, key, tokenizer, logged):
    with serving(Service([key], tokenizer), Tokens(["another-token"])) as behind:
        answer = door(behind.url, api_key=SECRET).post("/v1/chat/completions", **CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_refused")
    assert "DLLMARK_UPSTREAM_KEY" in answer.json()["error"]["message"]
    assert SECRET not in answer.text + logged.text


def test_what_the_upstream_refuses_reaches_the_client(client):
    with pytest.raises(openai.NotFoundError, match="the model here is tiny"):
        client.chat.completions.create(**{**CHAT, "model": "gpt"})
    with pytest.raises(openai.NotFoundError, match="the model here is tiny"):
        client.chat.completions.create(**{**CHAT, "model": "gpt"}, stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_is_gone_is_an_error_that_says_so(door, stream):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    answer = door(url).post("/v1/chat/completions", **CHAT, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert "--upstream" in answer.json()["error"]["message"]


def test_an_upstream_that_does_not_answer_is_given_up(door):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        through = door(url, seconds=0.2)
        answer = through.post("/v1/chat/completions", **CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
    assert "0.2 seconds" in answer.json()["error"]["message"]
    assert through.metric("dllmark_generations_total", outcome="failed") == 1


@pytest.mark.parametrize(("answer", "status", "code"), [
    (says(500, {"error": {"message": "a trace"}}), 502, "upstream_failed"),
    (says(302, b"", Location="http://example.com"), 502, "upstream_failed"),
    (says(200, b"<html>"), 502, "upstream_failed"),
    (says(200, [1]), 502, "upstream_failed"),
    (says(400, {"error": "no such option"}), 400, "upstream_error"),
    (says(418, b"?"), 418, "upstream_error"),
    (says(429, {}, Retry_After=7), 429, "upstream_busy"),
])  # fmt: skip
def test_odd_answers_become_errors_of_one_shape(door, answer, status, code):
    with odd_server(answer) as url:
        refused = door(url).post("/v1/chat/completions", **CHAT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert "a trace" not in refused.text
    assert refused.headers.get("retry-after") == ("7" if status == 429 else None)


def test_half_a_character_from_the_upstream_is_passed_on(door):
    body = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "\\ud83d"}}]}'
    with odd_server(says(200, body)) as url:
        answer = door(url).post("/v1/chat/completions", **CHAT)
    assert answer.status_code == 200
    assert answer.headers["x-dllmark-verdict"] == "too short"
    assert b"\\ud83d" in answer.content


def test_a_stream_that_breaks_off_ends_with_an_error(door):
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}\n\n'
    with odd_server(says(200, piece, Content_Type="text/event-stream")) as url:
        through = door(url)
        with (
            openai.OpenAI(base_url=f"{through.url}/v1", api_key="x", max_retries=0) as client,
            pytest.raises(openai.APIError, match="stream ended"),
        ):
            for chunk in client.chat.completions.create(**CHAT, stream=True):
                assert chunk.choices[0].delta.content == "Hel"
    assert through.metric("dllmark_generations_total", outcome="failed") == 1


def test_more_than_may_be_under_way_are_told_to_come_back(door, server, gate):
    through = door(server.url, limits=Limits(waiting=0))
    body = {**CHAT, "max_tokens": 8, "stream": True}
    with through.client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        gate.wait_for_model()
        refused = httpx.post(f"{through.url}/v1/chat/completions", json={**CHAT, "max_tokens": 8})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert through.metric("dllmark_generations_pending") == 1
        gate.open()
        response.read()
    assert through.post("/v1/chat/completions", **CHAT, max_tokens=8).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_the_upstreams_work_too(door, server, gate, stream):
    through = door(server.url)
    before = server.service.metrics.generations.labels("cancelled")._value.get()
    body = json.dumps({**CHAT, "max_tokens": 8, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(through.url).port)) as connection:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
        )
        connection.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        gate.wait_for_model()
    for _ in range(2000):  # each is a request, which lets the servers notice
        gate.let()
        if server.metric("dllmark_generations_total", outcome="cancelled") > before:
            break
    assert server.metric("dllmark_generations_total", outcome="cancelled") == before + 1
    assert through.metric("dllmark_generations_total", outcome="cancelled") == 1
    assert through.metric("dllmark_generations_pending") == 0


def test_the_command_needs_no_torch(server, key_file):
    program = (
        "import sys; sys.modules['torch'] = None; from dllmark.commands.cli import main; main()"
    )
    options = ["serve", "--key", key_file, "--port", "0", "--upstream", f"{server.url}/v1"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, options)], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            url = process.stderr.readline().split()[2]
            answer = httpx.post(f"{url}/v1/completions", timeout=60, json={
                "model": "tiny", "prompt": "Hm", "max_tokens": 4,
            })  # fmt: skip
        finally:
            process.terminate()
    assert answer.json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("options", "message"), [
    (["--model", "embedded", "--upstream", "http://127.0.0.1/v1"], "leave out --model"),
    (["--upstream", "http://me:hunter2@host/v1"], "no user, password or query"),
    (["--upstream", "http://127.0.0.1/v1", "--upstream-timeout", "0"], "more than 0 seconds"),
])  # fmt: skip
def test_the_command_refuses_what_does_not_go_together(run, key_file, options, message):
    result = run("serve", "--port", 0, "--key", key_file, *options)
    assert result.status != 0
    assert message in " ".join(result.err.split())
    assert "hunter2" not in result.err + result.out


@pytest.mark.parametrize("url", ["ftp://x", "no url", "http://user:pass@host/v1", "http://h/?k=1"])
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url):
    with pytest.raises(DllmarkError) as refused:
        Upstream(url)
    assert "pass" not in str(refused.value).replace("password", "")


def test_a_key_goes_over_https_only_and_is_one(monkeypatch):
    with pytest.raises(DllmarkError, match="https only"):
        Upstream("http://example.com/v1", SECRET)
    with pytest.raises(InputError, match="DLLMARK_UPSTREAM_KEY holds a line end"):
        Upstream("https://example.com/v1", "one\ntwo")
    with pytest.raises(InputError, match="more than 0 seconds"):
        Upstream("https://example.com/v1", seconds=0)
    assert SECRET not in repr(vars(Upstream("https://example.com/v1", SECRET)))
