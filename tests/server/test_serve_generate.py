"""POST /v1/generate: texts and their steps, the queue, and clients that go away."""

import socket
import threading
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
import torch
from samples import word_ids
from serving import read_events

import dllmark
from dllmark import Detector, Llada, Watermark
from dllmark.quality.repetition import repeated_ngrams
from dllmark.sampling.texts import Step
from dllmark.server import streams
from dllmark.server.generate_api import GenerateRequest, StepView, make_arguments
from dllmark.server.limits import Limits
from dllmark.server.service import Service

REQUEST = {"prompt": "Why is the sky blue?", "tokens": 16, "seed": 7}

REPEATING = {"prompt": "Hm", "tokens": 24, "seed": 7, "temperature": 0, "delta": 0}
"""What the tiny model answers with the same few tokens again and again."""


def written(model, key, tokens=16, watermark=True, temperature=0.8, top_p=1.0, **options):
    """What the library writes for the same request."""
    sampler = Llada(tokens // 2, tokens, temperature, top_p, apart=True)
    options = {"strategy": "cooled-joint", **options}
    mark = Watermark(key, **options, tokenizer=model.tokenizer) if watermark else None
    [text] = dllmark.generate(
        model, [REQUEST["prompt"]], mark, sampler, tokens=tokens, seed=7, batch_size=1
    )
    return text


def test_a_text_is_the_one_the_library_writes(server, model, key):
    expected = written(model, key)
    answer = server.post("/v1/generate", **REQUEST).json()
    assert (answer["text"], answer["tokens"]) == (expected.text, len(expected.ids))
    assert (answer["known_left"], answer["seed"]) == (expected.known_left, 7)
    assert answer["watermark"] == key.identity.to_dict()
    assert answer["detection"]["green"] == Detector(key).detect(expected.text).green


def test_the_mark_and_the_sampling_are_the_requests(server, model, key):
    strong = written(model, key, tokens=8, strategy="bidirectional", delta=9.0, top_p=0.3).text
    request = {**REQUEST, "tokens": 8, "strategy": "bidirectional", "delta": 9, "top_p": 0.3}
    assert server.post("/v1/generate", **request).json()["text"] == strong
    plain = server.post("/v1/generate", **REQUEST, watermark=False).json()
    assert (plain["text"], plain["watermark"]) == (written(model, key, watermark=False).text, None)


def test_a_request_may_forbid_repetition(server, model, key):
    loose, strict = (
        server.post("/v1/generate", **REPEATING, no_repeat_ngram=size).json()["text"]
        for size in (0, 2)
    )
    again, never = (repeated_ngrams(model.tokenizer.encode(text), 2) for text in (loose, strict))
    assert never < again
    assert server.post("/v1/generate", **REPEATING).json()["text"] == loose


def test_at_temperature_0_the_mark_is_the_same(server, model, key):
    answer = server.post("/v1/generate", **REQUEST, temperature=0).json()
    assert answer["text"] == written(model, key, temperature=0).text


@pytest.mark.parametrize(("name", "cache"), [("embedded", "window"), ("tiny", "none")])
def test_only_the_embedded_model_is_served_with_a_cache(key, tokenizer, model, name, cache):
    service = Service([key], tokenizer, replace(model, name=name))
    arguments = make_arguments(service, ["Hi"], GenerateRequest(prompt="Hi"))
    assert arguments.sampler.cache == cache


def test_without_a_seed_texts_differ_and_the_seed_is_told(server):
    request = {**REQUEST, "tokens": 8, "seed": None}
    first, second = (server.post("/v1/generate", **request).json() for _ in range(2))
    assert first["text"] != second["text"]
    again = server.post("/v1/generate", **{**request, "seed": first["seed"]}).json()
    assert again["text"] == first["text"]


def shown_marks(steps, tokens):
    """Yield the colours a client shows after each step: only changes are told."""
    marks = ["not scored"] * tokens
    for step in steps:
        for change in step["marks"]:
            assert marks[change["position"]] != change["mark"]
            marks[change["position"]] = change["mark"]
        yield list(marks)


def test_the_stream_shows_each_token_once(server, model, key):
    expected = written(model, key)
    events = server.events(**REQUEST)
    assert [name for name, _ in events] == ["start"] + 8 * ["step"] + ["end"]
    assert events[0][1] == {"tokens": 16, "steps": 8, "seed": 7}
    steps = [data for _, data in events[1:-1]]
    assert [(step["number"], step["total"]) for step in steps] == [(n, 8) for n in range(1, 9)]
    shown = {one["position"]: one["text"] for step in steps for one in step["revealed"]}
    assert sum(len(step["revealed"]) for step in steps) == len(shown) == 16
    assert "".join(shown[at] for at in range(len(expected.ids))) == expected.text
    assert events[-1][1]["text"] == expected.text


def test_colours_while_writing_follow_the_detectors_rule(server, key, tokenizer):
    """Each pair is scored once, where it stands first, and only if both its tokens are there."""
    ids = {}
    steps = [data for name, data in server.events(**REPEATING) if name == "step"]
    for step, marks in zip(steps, shown_marks(steps, 24), strict=True):
        for one in step["revealed"]:
            [ids[one["position"]]] = tokenizer.encode(one["text"]).tolist()
        detector, seen = Detector(key, tokenizer), set()
        for at in range(24):
            pair = ids.get(at - 1), ids.get(at)
            expected = "not scored"
            if None not in pair and pair not in seen:
                seen.add(pair)
                expected = "green" if detector.detect(pair).green else "red"
            assert marks[at] == expected
    assert len(seen) < 23, "a pair comes twice"
    changes = [change["mark"] for step in steps for change in step["marks"]]
    assert "not scored" in changes, "a pair was written again further left"


def test_white_space_at_the_end_has_no_colour_while_it_is_written(key, tokenizer, model):
    service = Service([key], tokenizer, model)
    ids = torch.tensor([[*tokenizer.encode("Two words"), *tokenizer.encode("\n\n")]])
    view = StepView(service, key, ids.shape[1])
    shown = view.after(Step(1, 1, ids, torch.ones_like(ids, dtype=torch.bool), 0))
    text = "".join(token["text"] for token in shown["revealed"])
    explained = Detector(key, tokenizer).explain(text)
    assert text == "Two words\n\n"
    assert [mark["position"] for mark in shown["marks"]] == [
        at for at, token in enumerate(explained) if token.mark != "not scored"
    ]
    service.close()


def test_the_last_colours_are_those_of_a_check(serve, key, other_key):
    """Also with several keys, of which another one may fit a text without a mark best."""
    server = serve([key, other_key])
    for watermark in (True, False):
        [*_, (name, end)] = server.events(**REQUEST, watermark=watermark)
        assert name == "end"
        assert end["detection"] == server.detect(end["text"], explain=True)


@pytest.fixture
def whole_words(model, tokenizer):
    """Let the model write whole words alone: the tokenizer reads them as they were written."""
    others = torch.ones(tokenizer.vocab_size, dtype=torch.bool)
    others[word_ids(tokenizer)] = False
    hook = model.transformer.register_forward_hook(
        lambda module, given, logits: logits.masked_fill(others, -torch.inf)
    )
    yield
    hook.remove()


@pytest.mark.usefixtures("whole_words")
def test_the_evidence_grows_with_the_steps_and_ends_as_the_detection_does(server):
    events = server.events(**REQUEST, suppress_end=True)
    found = [data["detection"] for name, data in events if name == "step"]
    pairs = [detection["pairs"] for detection in found]
    assert pairs == sorted(pairs)
    assert pairs[0] < pairs[-1]
    last, end = found[-1], events[-1][1]["detection"]
    assert last == {name: end[name] for name in last}


def test_both_texts_are_written_at_once_and_are_those_of_two_requests(server):
    marked, unmarked = (
        server.events(**REQUEST, watermark=watermark) for watermark in (True, False)
    )
    both = server.events(**REQUEST, compare=True)
    assert [name for name, _ in both] == [name for name, _ in marked]
    for (name, data), (_, one), (_, other) in zip(both, marked, unmarked, strict=True):
        if name != "start":
            kept = {key: value for key, value in data.items() if key != "unmarked"}
            assert kept == one
            assert data["unmarked"] == {key: other[key] for key in data["unmarked"]}
    answer = server.post("/v1/generate", **REQUEST, compare=True).json()
    assert answer["text"] == marked[-1][1]["text"]
    assert answer["unmarked"]["text"] == unmarked[-1][1]["text"]
    assert answer["unmarked"]["watermark"] is None


def test_a_generation_that_waits_is_told_who_comes_first_and_how_far_that_is(serve, key, gate):
    server = serve([key])
    request = {**REQUEST, "stream": True}
    with ExitStack() as stack:
        answers = [
            stack.enter_context(server.client.stream("POST", "/v1/generate", json=request))
            for _ in range(4)
        ]
        first, second, third, _ = map(read_events, answers)
        assert next(first)[0] == next(second)[0] == next(third)[0] == "start"
        assert next(second) == ("waiting", {"ahead": 1, "progress": 0})
        assert next(third) == ("waiting", {"ahead": 2, "progress": 0})
        gate.let(2)
        assert next(second) == ("waiting", {"ahead": 1, "progress": 1 / 8})
        assert next(third) == ("waiting", {"ahead": 2, "progress": 1 / 8})
        answers[3].close()
        wait_until(lambda: len(server.service.queue.pending), 3)
        gate.open()
        assert [name for name, _ in first][-1] == "end"
        rest = list(second)
        assert all(data["progress"] for name, data in rest if name == "waiting")
        names = [name for name, _ in rest]
        assert names == sorted(names, key=["waiting", "step", "end"].index)
        waits = [data["ahead"] for name, data in third if name == "waiting"]
        assert set(waits) == {2, 1}
        assert waits == sorted(waits, reverse=True)


def test_a_public_server_decides_about_the_mark_and_shows_no_colours(serve, key):
    server = serve([key], public=True)
    events = server.events(**REQUEST)
    assert all("marks" not in data for _, data in events)
    assert all("detection" not in data for _, data in events[:-1])
    assert set(events[-1][1]["detection"]) == {"verdict", "strength", "p_value_at_most"}
    for option in ({"delta": 0}, {"strategy": "kgw"}, {"watermark": False}, {"compare": True}):
        response = server.post("/v1/generate", **REQUEST, **option)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "not_public")


REFUSED = {
    "no prompt": ({"prompt": ""}, 422, "prompt"),
    "a blank prompt": ({"prompt": "  "}, 400, "prompt 1 is empty"),
    "a prompt too long": ({"prompt": "word " * 600}, 400, "takes 512 in all"),
    "too many tokens": ({"tokens": 513}, 400, "513 tokens asked for, but 512 are the most"),
    "too many steps": ({"steps": 10**9}, 400, "1000000000 steps asked for, but 512 are the most"),
    "fewer steps than blocks": ({"tokens": 40, "steps": 1}, 400, "take at least 2 steps"),
    "a temperature": ({"temperature": 1e-38}, 400, "temperature is 0, which takes"),
    "a run of one": ({"no_repeat_ngram": 1}, 400, "no_repeat_ngram is 0, which allows repetition"),
    "a run too long": ({"no_repeat_ngram": 65}, 422, "no_repeat_ngram"),
    "nothing to compare": ({"compare": True, "watermark": False}, 400, "leave out watermark"),
    "a strategy": ({"strategy": "none"}, 422, "strategy"),
    "no number": ({"delta": "NaN"}, 422, "delta"),
    "no probability": ({"top_p": "NaN"}, 422, "top_p"),
    "a probability of nothing": ({"top_p": 0}, 422, "top_p"),
}


@pytest.mark.parametrize(("change", "status", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_written_is_refused_before_it_waits(server, change, status, reason):
    for stream in (False, True):
        response = server.post("/v1/generate", **{**REQUEST, **change}, stream=stream)
        assert response.status_code == status
        assert reason in response.json()["error"]["message"]


def test_detection_answers_while_a_text_is_written(server, gate, marked):
    with server.client.stream("POST", "/v1/generate", json={**REQUEST, "stream": True}) as response:
        events = read_events(response)
        assert next(events)[0] == "start"
        gate.wait_for_model()
        assert server.detect(marked)["verdict"] == "watermarked"
        assert server.metric("dllmark_generations_pending") == 1
        gate.open()
        assert [name for name, _ in events][-1] == "end"


def test_a_full_queue_says_when_to_come_back(serve, key, gate):
    server = serve([key], limits=Limits(waiting=1))
    request = {**REQUEST, "stream": True}
    with ExitStack() as stack:
        running = stack.enter_context(server.client.stream("POST", "/v1/generate", json=request))
        gate.wait_for_model()
        waiting = stack.enter_context(server.client.stream("POST", "/v1/generate", json=request))
        events = read_events(waiting)
        assert next(events)[0] == "start"
        refused = server.post("/v1/generate", **REQUEST)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["Retry-After"]) >= 1
        assert server.post("/v1/completions", model="tiny", prompt="a").status_code == 429
        gate.open()
        running.read()
        assert [name for name, _ in events][-1] == "end"
    assert server.post("/v1/generate", **REQUEST).status_code == 200


def test_a_stream_that_waits_is_kept_alive(serve, key, gate, monkeypatch):
    monkeypatch.setattr(streams, "PING_SECONDS", 0.01)
    server = serve([key])
    request = {**REQUEST, "stream": True}
    with ExitStack() as stack:
        running = stack.enter_context(server.client.stream("POST", "/v1/generate", json=request))
        gate.wait_for_model()
        waiting = stack.enter_context(server.client.stream("POST", "/v1/generate", json=request))
        lines = waiting.iter_lines()
        comments = (line for line in lines if line.startswith(":"))
        assert all("ping" in next(comments) for _ in range(3))
        gate.open()
        running.read()
        assert "event: end" in lines


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(serve, key, gate, stream):
    """Both the one that waits, and the one whose text is being written."""
    server = serve([key], limits=Limits(waiting=1))
    running, waiting = (Abandoned(server, {**REQUEST, "stream": stream}) for _ in range(2))
    running.start()
    gate.wait_for_model()
    waiting.start()
    pending = server.service.queue.pending
    wait_until(lambda: len(pending), 2)
    waiting.go_away()
    wait_until(lambda: len(pending), 1)
    running.go_away()
    wait_until(lambda: all(one._stop.is_set() for one in list(pending)), True)
    gate.let(1)
    wait_until(lambda: len(pending), 0)
    assert gate.passed == 1
    assert server.metric("dllmark_generations_total", outcome="cancelled") == 2
    gate.open()
    assert server.post("/v1/generate", **REQUEST).status_code == 200


class Abandoned:
    """A request whose client closes its connection before the answer is complete."""

    def __init__(self, server, body):
        self._client = httpx.Client(base_url=server.url, timeout=60)
        self._request = self._client.build_request("POST", "/v1/generate", json=body)

    def start(self):
        host, port = self._request.url.host, self._request.url.port
        self._socket = socket.create_connection((host, port))
        head = f"POST /v1/generate HTTP/1.1\r\nHost: {host}:{port}\r\n"
        fields = "".join(
            f"{name}: {value}\r\n" for name, value in self._request.headers.items()
            if name.lower() != "host"
        )  # fmt: skip
        self._socket.sendall((head + fields + "\r\n").encode() + self._request.content)

    def go_away(self):
        self._socket.close()
        self._client.close()


def wait_until(value, expected):
    """Wait for the server's thread to come to a state that it must come to."""
    pause = threading.Event()
    for _ in range(3000):
        if value() == expected:
            return
        pause.wait(0.01)
    raise AssertionError(f"{value()} instead of {expected} after 30 seconds")


@pytest.fixture
def broken(model):
    """The tiny model, failing with a message that quotes a text."""

    def fail(*_):
        raise RuntimeError("the secret text was: " + REQUEST["prompt"])

    hook = model.transformer.register_forward_pre_hook(fail)
    yield
    hook.remove()


def test_a_failure_is_told_and_logged_without_any_text(serve, key, broken, logged):
    server = serve([key])
    response = server.post("/v1/generate", **REQUEST)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the server failed (RuntimeError)"
    name, data = server.events(**REQUEST)[-1]
    assert (name, data["error"]["code"]) == ("error", "internal_error")
    assert "failed with RuntimeError" in logged.text
    assert "sampling/denoiser.py" in logged.text
    assert "sky" not in logged.text
