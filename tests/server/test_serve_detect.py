"""POST /v1/detect: the library's answers over HTTP, for one key, several, and the public."""

from dataclasses import asdict, replace

import pytest
from samples import marked_text, plain_text

from dllmark import Detector
from dllmark.server.limits import Limits


def test_a_text_gets_the_verdict_of_the_library(server, key, marked, plain):
    for text in (marked, plain, "short"):
        detection = Detector(key).detect(text)
        expected = {**detection.to_dict(), "green_fraction": detection.green_fraction}
        assert server.detect(text) == expected


def test_many_texts_are_answered_in_their_order(server, marked, plain):
    response = server.post("/v1/detect", text=[plain, marked, ""])
    verdicts = [result["verdict"] for result in response.json()["results"]]
    assert verdicts == ["not detected", "watermarked", "too short"]
    assert server.post("/v1/detect", text=[]).json() == {"results": []}


def test_the_rate_and_the_scoring_are_the_requests(server, key, marked):
    detection = Detector(key, fpr=1e-70, scoring="all").detect(2 * marked)
    result = server.detect(2 * marked, fpr=1e-70, scoring="all")
    assert (result["verdict"], result["pairs"]) == (detection.verdict.value, detection.pairs)
    assert (result["fpr"], result["scoring"]) == (1e-70, "all")


def test_tokens_and_stretches_are_explained_on_request(server, key, tokenizer, marked, plain):
    text = plain + marked + " naïve 🙂"
    detector = Detector(key, tokenizer)
    result = server.detect(text, explain=True, spans=True)
    assert result["tokens"] == [asdict(token) for token in detector.explain(text)]
    assert result["spans"] == [asdict(span) for span in detector.spans(text)]
    [span] = result["spans"]
    assert abs(span["start"] - len(plain)) < 60
    assert "tokens" not in server.detect(text, spans=True)


def test_of_several_keys_the_one_that_fits_is_named_and_the_others_counted(
    serve, key, other_key, tokenizer
):
    server = serve([key, other_key, key])
    for right in (key, other_key):
        text = marked_text(right, tokenizer, words=40)
        alone = Detector(right, tokenizer)
        result = server.detect(text, explain=True, spans=True)
        assert (result["key_id"], result["keys_tried"]) == (right.id, 2)
        assert result["p_value"] == pytest.approx(2 * alone.detect(text).p_value)
        assert result["tokens"] == [asdict(token) for token in alone.explain(text)]
        strict = [1 - (1 - one.p_value) ** 2 for one in Detector(right, tokenizer).spans(text)]
        assert [span["p_value"] for span in result["spans"]] == pytest.approx(strict, rel=1e-6)


def test_two_files_of_one_key_are_one_key(serve, key, marked):
    copy = replace(key, created="2026-01-01", note="a copy")
    server = serve([key, copy], with_model=False)
    result = server.detect(marked, explain=True, spans=True)
    assert (result["key_id"], result["keys_tried"]) == (key.id, 1)
    assert len(server.client.get("/v1/server").json()["keys"]) == 1


def test_a_secret_with_another_gamma_is_another_key(serve, key, tokenizer):
    other = replace(key, gamma=0.1)
    server = serve([key, other], with_model=False)
    for right in (key, other):
        text = marked_text(right, tokenizer, words=40)
        result = server.detect(text, explain=True, spans=True)
        assert (result["key_id"], result["gamma"], result["keys_tried"]) == (key.id, right.gamma, 2)
        assert result["tokens"] == [
            asdict(token) for token in Detector(right, tokenizer).explain(text)
        ]
        assert result["spans"]


def test_a_public_server_tells_a_verdict_and_a_class_of_p_values(serve, key, marked, plain):
    server = serve([key], with_model=False, public=True)
    assert server.detect(marked) == {
        "verdict": "watermarked", "strength": "clear", "p_value_at_most": 1e-6
    }  # fmt: skip
    assert server.detect(plain) == {
        "verdict": "not detected", "strength": None, "p_value_at_most": 1.0
    }  # fmt: skip


def test_a_public_server_says_the_same_of_all_short_texts(serve, key, tokenizer):
    """The verdict on ten pairs would tell whether all of them are green."""
    server = serve([key], with_model=False, public=True)
    too_short = {"verdict": "too short", "strength": None, "p_value_at_most": 1.0}
    for text in (marked_text(key, tokenizer, 45), plain_text(tokenizer, 45), ""):
        assert server.detect(text) == too_short


def test_what_a_public_server_calls_too_short_depends_on_no_colour(serve, key, tokenizer):
    """The pairs a text needs in truth grow with the green ones among its common pairs."""
    server = serve([key], with_model=False, public=True)
    for words, verdict in ((149, "too short"), (152, "not detected")):
        for seed in range(5):
            text = plain_text(tokenizer, words, seed)
            assert server.detect(text)["verdict"] == verdict


@pytest.mark.parametrize(
    "option", [{"fpr": 0.5}, {"scoring": "all"}, {"explain": True}, {"spans": True}]
)
def test_a_public_server_lets_nobody_probe_it(serve, key, marked, option):
    """With a rate of one's choice, p-values can be found by bisection."""
    server = serve([key], with_model=False, public=True)
    response = server.post("/v1/detect", text=marked, **option)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "not_public"
    assert response.json()["error"]["param"] in option


def test_the_servers_own_rate_is_the_default(serve, key, marked):
    server = serve([key], with_model=False, fpr=1e-200)
    assert server.detect(marked)["verdict"] == "too short"


REFUSED = {
    "no text": ({}, 422, "text: Field required"),
    "a number": ({"text": 3}, 422, "text"),
    "an unknown option": ({"text": "a", "texts": []}, 422, "texts: Extra inputs"),
    "a rate of 1": ({"text": "a", "fpr": 1}, 422, "fpr"),
    "a text too long": ({"text": "a" * 101}, 413, "101 characters, but 100 are the most"),
    "too many texts": ({"text": ["a"] * 4}, 413, "4 texts in one request, but 3 are the most"),
}


@pytest.mark.parametrize(("body", "status", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_checked_is_refused_with_a_reason(serve, key, body, status, reason):
    server = serve([key], with_model=False, limits=Limits(characters=100, batch=3))
    response = server.post("/v1/detect", **body)
    assert response.status_code == status
    error = response.json()["error"]
    assert reason in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "kind"), [(b"{text", "application/json"), (b'{"text": "a"}', "text/plain")]
)
def test_a_body_that_is_no_json_is_told_so(server, content, kind):
    headers = {"Content-Type": kind}
    response = server.client.post("/v1/detect", content=content, headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (422, None)
    assert "send one, with Content-Type: application/json" in response.json()["error"]["message"]


def test_lone_surrogates_are_refused(server):
    response = server.client.post(
        "/v1/detect", content=rb'{"text": "\ud800"}', headers={"Content-Type": "application/json"}
    )
    assert response.status_code in (400, 422)


def test_a_server_without_a_model_only_detects(serve, key, marked):
    server = serve([key], with_model=False)
    assert server.detect(marked)["verdict"] == "watermarked"
    assert server.post("/v1/generate", prompt="Hello").status_code == 404
    assert server.client.get("/v1/server").json()["model"] is None
