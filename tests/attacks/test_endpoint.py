"""Paraphrase over HTTP: a server that answers, one that misbehaves, and what it may cost."""

import threading

import pytest
from chat_server import ChatServer, answer, collected, completion, half, reset, send

from dllmark.attacks.endpoint import ATTEMPTS, FAILURES_IN_A_ROW, Endpoint, EndpointError, GivenUp
from dllmark.errors import DllmarkError

SECRET = "sk-not-for-any-log"


def test_the_papers_prompt_is_sent_and_the_answer_returned(chat_server, endpoint):
    assert collected(endpoint().paraphrase(["one text", "{braces} too"])) == {
        0: "ONE TEXT",
        1: "{BRACES} TOO",
    }
    first = min(chat_server.bodies, key=lambda body: len(body["messages"][0]["content"]))
    assert first == {
        "path": "/v1/chat/completions",
        "model": "some-model",
        "messages": [
            {
                "role": "user",
                "content": "Please paraphrase the following text while preserving its meaning. "
                "Output only the rewritten text, nothing else:\n\none text",
            }
        ],
    }


def test_the_key_is_sent_and_never_shown(chat_server, endpoint):
    with_key = endpoint(api_key=SECRET)
    assert SECRET not in repr(with_key)
    collected(with_key.paraphrase(["a"]))
    collected(endpoint().paraphrase(["b"]))
    assert [headers.get("Authorization") for headers in chat_server.headers] == [
        f"Bearer {SECRET}",
        None,
    ]


PASSING = {
    "500": send(500),
    "503 with a body": send(503, b"<html>busy</html>"),
    "429": send(429),
    "a reset connection": reset,
    "half an answer": half,
    "broken JSON": send(body=b'{"choices": ['),
    "no JSON": send(body=b"\xff\xfe"),
    "JSON of another kind": send(body=b"[]"),
    "no choices": send(body=b'{"choices": []}'),
    "no content": send(body=completion(None)),
    "empty content": send(body=completion("  \n")),
    "half a character": send(body=completion("\ud800")),
}


@pytest.mark.parametrize("behaviour", PASSING.values(), ids=PASSING)
def test_what_may_pass_is_tried_again(chat_server, endpoint, waits, behaviour):
    chat_server.will(behaviour, behaviour)
    assert collected(endpoint().paraphrase(["text"])) == {0: "TEXT"}
    assert (chat_server.texts, waits) == (["text"] * 3, [1.0, 2.0])


def test_a_server_that_does_not_answer_is_asked_again(chat_server, endpoint, waits):
    chat_server.will(chat_server.hang)
    assert collected(endpoint(timeout=0.5).paraphrase(["text"])) == {0: "TEXT"}
    assert waits[0] == 1.0


def test_waits_double_up_to_a_minute_with_jitter_and_then_the_text_is_given_up(
    chat_server, endpoint
):
    waits, planned = [], [2.0**attempt for attempt in range(ATTEMPTS - 1)]
    chat_server.will(*[send(500)] * ATTEMPTS)
    results = collected(endpoint(sleep=waits.append, jitter=0.5).paraphrase(["a"]))
    assert results == {0: GivenUp(f"it answered 500, {ATTEMPTS} times")}
    assert all(0 <= wait - least <= 0.5 for wait, least in zip(waits, planned, strict=True))
    assert waits != planned


ASKED = {
    "seconds": ("7", 7.0),
    "a date": ("Sun, 15 Nov 2026 12:00:30 GMT", 30.0),
    "a date that has passed": ("Sun, 15 Nov 2026 11:00:00 GMT", 1.0),
    "less than the back-off": ("0.1", 1.0),
    "nonsense": ("soon", 1.0),
    "not a number": ("nan", 1.0),
}


@pytest.mark.parametrize(("value", "wait"), ASKED.values(), ids=ASKED)
def test_retry_after_is_honoured(chat_server, endpoint, waits, value, wait):
    noon = 1794744000.0  # 2026-11-15 12:00 UTC
    chat_server.will(send(429, Retry_After=value))
    collected(endpoint(now=lambda: noon).paraphrase(["text"]))
    assert waits == [wait]


def test_nobody_waits_an_hour(chat_server, endpoint, waits):
    chat_server.will(send(429, Retry_After="3600"))
    with pytest.raises(EndpointError, match="asks to wait 3600 s: run again then"):
        collected(endpoint().paraphrase(["text"]))
    assert waits == []


HOPELESS = {
    "a bad request": (send(400), "it answered 400"),
    "too long": (send(413), "it answered 413"),
    "cut off": (send(body=completion("x", finish_reason="length")), "stopped early (length)"),
    "filtered": (
        send(body=completion("", finish_reason="content_filter")),
        "stopped early (content_filter)",
    ),
}


@pytest.mark.parametrize(("behaviour", "reason"), HOPELESS.values(), ids=HOPELESS)
def test_a_text_that_cannot_be_paraphrased_does_not_stop_the_others(
    chat_server, endpoint, behaviour, reason
):
    chat_server.will(behaviour)
    results = collected(endpoint().paraphrase(["a", "b", "c"], concurrency=1))
    assert reason in results.pop(0).reason
    assert results == {1: "B", 2: "C"}
    assert len(chat_server.texts) == 3


@pytest.mark.parametrize("status", [401, 403, 404, 302, 308])
def test_a_refusal_stops_the_run_at_once_and_tells_no_key(chat_server, endpoint, waits, status):
    elsewhere = ChatServer()
    chat_server.will(send(status, b"sent: " + SECRET.encode(), Location=f"{elsewhere.url}/x"))
    with pytest.raises(EndpointError, match=f"answered {status}") as raised:
        collected(endpoint(api_key=SECRET).paraphrase(["a", "b"], concurrency=1))
    elsewhere.close()
    assert SECRET not in str(raised.value)
    assert (len(chat_server.texts), elsewhere.texts, waits) == (1, [], [])


def test_texts_failing_in_a_row_stop_the_run(chat_server, endpoint):
    chat_server.will(*[send(400)] * 10)
    answers = []
    with pytest.raises(EndpointError, match=r"5 texts in a row .*, the last because it answered 4"):
        answers.extend(endpoint().paraphrase(["a"] * 20, concurrency=1))
    assert len(answers) == len(chat_server.texts) == FAILURES_IN_A_ROW


def test_failures_between_answers_do_not(chat_server, endpoint):
    chat_server.will(*[send(400), answer] * 8)
    results = collected(endpoint().paraphrase(["a"] * 16, concurrency=1))
    assert sum(isinstance(result, GivenUp) for result in results.values()) == 8


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_requests_are_made_than_allowed_and_no_answer_is_lost(
    chat_server, endpoint, concurrency
):
    chat_server.will(send(500), answer, answer)
    answers = []
    with pytest.raises(EndpointError, match="all 7 requests of --max-requests are used"):
        answers.extend(endpoint(max_requests=7).paraphrase(["a"] * 50, concurrency))
    assert len(chat_server.texts) == 7
    assert [answer for _, answer in answers] == ["A"] * 6


def test_as_many_requests_are_under_way_as_asked_for(chat_server, endpoint):
    together, lock, now, most = threading.Barrier(4), threading.Lock(), 0, 0

    def answer_together(handler, text):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(timeout=60)
        with lock:
            now -= 1
        answer(handler, text)

    chat_server.will(*[answer_together] * 12)
    texts = [f"t{number}" for number in range(12)]
    results = collected(endpoint().paraphrase(texts, concurrency=4))
    assert results == {number: text.upper() for number, text in enumerate(texts)}
    assert most == 4


def test_an_empty_text_costs_no_request(chat_server, endpoint):
    assert collected(endpoint().paraphrase(["", " \n"])) == {0: "", 1: " \n"}
    assert chat_server.texts == []


def test_a_server_that_is_gone_is_said_to_be_and_why(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    gone = ChatServer()
    gone.close()
    options = {"max_requests": 100, "sleep": lambda seconds: None, "api_key": SECRET}
    [(_, result)] = Endpoint(gone.url, "some-model", **options).paraphrase(["a"])
    assert "the endpoint cannot be reached" in result.reason
    assert "Connection refused" in result.reason
    told = pytest.raises(EndpointError, match=r"5 texts in a row .* Connection refused\), 6 times")
    with told as raised:
        collected(Endpoint(gone.url, "some-model", **options).paraphrase(["a"] * 9))
    assert SECRET not in str(raised.value)


def test_waiting_ends_when_the_run_is_stopped(chat_server, endpoint):
    chat_server.will(send(429, Retry_After="500"), send(401))
    with pytest.raises(EndpointError, match="answered 401"):
        collected(endpoint(sleep=None).paraphrase(["a", "b"], concurrency=2))
    assert len(chat_server.texts) == 2


def test_the_command_says_why_a_dead_endpoint_gave_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr("dllmark.attacks.endpoint.ATTEMPTS", 1)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("DLLMARK_API_KEY", SECRET)
    gone = ChatServer()
    gone.close()
    for count in (1, 7):
        (tmp_path / "in.jsonl").write_text('"One."\n' * count)
        command = ["attack", "paraphrase", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl"]
        result = run(*command, "--endpoint", gone.url, "--model", "some-model")
        assert (result.status, "Connection refused" in result.err) == (2, True)
        assert SECRET not in result.err


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DllmarkError, match=r"httpx and tenacity: pip install 'dllmark\[eval\]'"):
        Endpoint("https://host/v1", "m", 1)


REFUSED = {
    "a file": ({"url": "file:///etc/passwd"}, "starts with http"),
    "no host": ({"url": "https:///v1"}, "names a host"),
    "no URL": ({"url": "localhost:8000"}, "starts with http"),
    "a password": ({"url": "https://me:secret@host/v1"}, "no user, password or query"),
    "a query": ({"url": "https://host/v1?key=secret"}, "no user, password or query"),
    "a key in the clear": ({"url": "http://host/v1", "api_key": SECRET}, "over https only"),
    "a port that is none": ({"url": "https://host:port/v1"}, "names a host"),
    "a key with a line end": ({"api_key": SECRET + "\n"}, "holds a line end"),
    "a key with a space": ({"api_key": SECRET + " "}, "another character keys never have"),
    "no request": ({"max_requests": 0}, "at least 1 request"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=REFUSED)
def test_settings_are_checked_and_secrets_not_repeated(options, reason):
    defaults = {"url": "https://host/v1", "model": "m", "max_requests": 1}
    with pytest.raises(EndpointError, match=reason) as raised:
        Endpoint(**{**defaults, **options})
    assert "secret" not in str(raised.value)
    assert SECRET not in str(raised.value)


def test_at_least_one_request_runs_at_a_time(endpoint):
    with pytest.raises(EndpointError, match="at least 1 request at a time"):
        collected(endpoint().paraphrase(["a"], concurrency=0))
