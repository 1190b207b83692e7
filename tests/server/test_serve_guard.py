"""Who is let in, how much each may ask, and what is never written down."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.errors import InputError, MismatchError
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.server.access import Tokens, is_loopback, is_own_name, read_tokens
from dllmark.server.limits import Limits, RateLimit
from dllmark.server.refusal import Refusal
from dllmark.server.service import Service

TOKENS = ["first-token-of-this-server", "second-token-of-this-server"]


def test_with_tokens_only_their_holders_are_answered(serve, key):
    server = serve([key], with_model=False, tokens=Tokens(TOKENS))
    for header in ("", "Bearer wrong", TOKENS[0], f"Basic {TOKENS[0]}", f"Bearer {TOKENS[0]}x"):
        for path in ("/v1/server", "/metrics"):
            response = server.client.get(path, headers={"Authorization": header})
            assert response.status_code == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "wrong_token"
    for token in TOKENS:
        headers = {"Authorization": f"Bearer {token}"}
        assert server.client.get("/v1/server", headers=headers).status_code == 200


def test_what_tells_nothing_needs_no_token(serve, key):
    server = serve([key], with_model=False, tokens=Tokens(TOKENS))
    for path in ("/", "/docs", "/healthz", "/openapi.json", "/page/page.js"):
        assert server.client.get(path).status_code == 200


def test_tokens_come_from_a_private_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# for the gateway\n\n{TOKENS[0]}\n  {TOKENS[1]}  \n")
    path.chmod(0o600)
    tokens = read_tokens(path)
    assert [tokens.client(f"bearer {token}") for token in TOKENS] == ["token 0", "token 1"]
    assert tokens.client("Bearer # for the gateway") is None
    path.chmod(0o640)
    with pytest.raises(InputError, match="run `chmod 600"):
        read_tokens(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "a token a line"), (b"too-short\n", "16 characters or more"), (b"\xff" * 20, "UTF-8")],
)
def test_a_token_file_that_cannot_be_used_is_refused(tmp_path, content, reason):
    path = tmp_path / "tokens"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match=reason) as refused:
        read_tokens(path)
    assert "too-short" not in str(refused.value)
    with pytest.raises(InputError, match="cannot read the token file"):
        read_tokens(tmp_path / "missing")


@given(st.lists(st.text(min_size=1), min_size=1), st.text())
def test_only_the_very_tokens_are_accepted(known, given_token):
    accepted = Tokens([token.strip() for token in known]).client(f"Bearer {given_token}")
    expected = given_token.strip() in [token.strip() for token in known]
    assert (accepted is not None) == expected


def test_addresses_that_only_this_machine_reaches():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.2", "example.org", ""]))
    assert all(
        map(is_own_name, ["localhost", "LOCALHOST:1", "[::1]:80", "127.0.0.1", "127.0.0.2:80"])
    )
    assert not any(map(is_own_name, ["", "evil.example", "localhost.evil.example:80", "0.0.0.0"]))


def test_a_page_elsewhere_cannot_use_a_name_of_its_own_for_this_server(server, serve, key):
    headers = {"Host": "evil.example"}
    assert server.client.get("/v1/server", headers=headers).status_code == 421
    guarded = serve([key], with_model=False, tokens=Tokens(TOKENS))
    headers["Authorization"] = f"Bearer {TOKENS[0]}"
    assert guarded.client.get("/v1/server", headers=headers).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_large_is_refused_before_it_is_read(serve, key, chunked):
    server = serve([key], with_model=False, limits=Limits(body=1000))
    body = json.dumps({"text": "a" * 990}).encode()
    sent = []

    def pieces():
        for at in range(0, len(body), 100):
            sent.append(at)
            yield body[at : at + 100]

    headers = {"Content-Type": "application/json"}
    response = server.client.post(
        "/v1/detect", content=pieces() if chunked else body, headers=headers
    )
    assert response.status_code == 413
    assert response.json()["error"]["message"] == "a request has at most 1000 bytes: send less"
    assert server.detect("a" * 900)["verdict"] == "too short"


def test_a_client_has_so_many_requests_a_minute(serve, key):
    server = serve([key], with_model=False, limits=Limits(per_minute=2), tokens=Tokens(TOKENS))
    first, second = ({"Authorization": f"Bearer {token}"} for token in TOKENS)
    statuses = [server.client.get("/v1/server", headers=first).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = server.client.get("/v1/server", headers=first)
    assert 1 <= int(refused.headers["Retry-After"]) <= 30
    assert refused.json()["error"]["code"] == "too_many_requests"
    assert server.client.get("/v1/server", headers=second).status_code == 200


def test_requests_come_back_evenly_over_the_minute():
    now = 0.0
    limit = RateLimit(6, now=lambda: now)
    for _ in range(6):
        limit.spend("client")
    with pytest.raises(Refusal, match="wait 10 seconds"):
        limit.spend("client")
    now = 10.0
    limit.spend("client")
    with pytest.raises(Refusal):
        limit.spend("client")
    now = 1000.0
    for _ in range(6):
        limit.spend("client")
    with pytest.raises(Refusal):
        limit.spend("client")


def test_only_so_many_requests_run_at_a_time(serve, key, gate):
    server = serve([key], limits=Limits(concurrent=1))
    body = {"prompt": "Hello", "tokens": 8, "stream": True}
    with server.client.stream("POST", "/v1/generate", json=body) as running:
        gate.wait_for_model()
        refused = server.client.get("/v1/server")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["error"]["code"] == "too_many_at_once"
        assert server.client.get("/healthz").status_code == 200
        gate.open()
        running.read()


def test_limits_are_positive():
    with pytest.raises(InputError, match="the limit batch is at least 1; got 0"):
        Limits(batch=0)
    assert Limits(waiting=0).waiting == 0


def test_a_server_needs_keys_for_one_tokenizer(tokenizer, small_key):
    with pytest.raises(InputError, match="at least one key"):
        Service([], tokenizer)
    with pytest.raises(MismatchError, match="for another tokenizer than embedded"):
        Service([small_key], tokenizer)


def test_the_browser_is_told_to_load_nothing_from_elsewhere(server):
    for path in ("/", "/v1/server", "/nonsense"):
        headers = server.client.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_unknown_paths_and_methods_are_refused_in_the_same_shape(server):
    for method, path, status in (
        ("GET", "/nonsense", 404),
        ("GET", "/page/../command.py", 404),
        ("GET", "/page/%2e%2e/command.py", 404),
        ("GET", "/v1/detect", 405),
    ):
        response = server.client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["code"] in ("not_found", "method_not_allowed")


def test_neither_texts_nor_secrets_are_logged(serve, key, tokenizer, logged):
    secret_key = WatermarkKey(Secret(b"\xabsecret \xcdbytes!!"), 0.5, tokenizer.id)
    server = serve([secret_key], tokens=Tokens(TOKENS))
    headers = {"Authorization": f"Bearer {TOKENS[0]}"}
    words = {"text": "confidential words"}
    server.client.post("/v1/detect", json=words, headers=headers)
    server.client.post("/v1/detect?text=confidential", json={"text": 1}, headers=headers)
    server.client.get("/confidential/words", headers=headers)
    body = {"prompt": "confidential", "tokens": 8}
    server.client.post("/v1/generate", json=body, headers=headers)
    for record in logged.records:
        told = record.getMessage() if not record.name.startswith(("httpx", "httpcore")) else ""
        assert "confidential" not in told
        assert TOKENS[0] not in told and secret_key.secret.reveal().hex() not in told
    assert re.search(r"POST /v1/detect 200 \d+ ms", logged.text)
    assert re.search(r"GET other 404 \d+ ms", logged.text)


def test_metrics_are_what_prometheus_reads(serve, key, marked, plain):
    server = serve([key])
    for text in (marked, marked, plain):
        server.detect(text)
    server.post("/v1/detect", nonsense=1)
    tokens = server.post("/v1/generate", prompt="Hello", tokens=8).json()["tokens"]
    requests = {"method": "POST", "path": "/v1/detect"}
    assert server.metric("dllmark_requests_total", **requests, status="200") == 3
    assert server.metric("dllmark_requests_total", **requests, status="422") == 1
    assert server.metric("dllmark_detections_total", verdict="watermarked") >= 2
    assert server.metric("dllmark_generations_total", outcome="finished") == 1
    assert server.metric("dllmark_tokens_total") == tokens
    assert server.metric("dllmark_generations_pending") == 0
    seconds = "dllmark_request_seconds"
    assert server.metric(f"{seconds}_count", path="/v1/detect") == 4
    assert server.metric(f"{seconds}_bucket", path="/v1/detect", le="+Inf") == 4
    assert server.metric(f"{seconds}_sum", path="/v1/detect") > 0


def test_each_server_counts_for_itself(serve, key):
    first, second = serve([key], with_model=False), serve([key], with_model=False)
    first.detect("Hello")
    assert first.metric("dllmark_detections_total", verdict="too short") == 1
    assert "dllmark_detections_total{" not in second.client.get("/metrics").text
