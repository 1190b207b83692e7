"""POST /v1/detect with `payload`: what `detect --payload` says, for those who may know."""

import pytest
from samples import marked_text

from dllmark import PayloadDetector, Payloads
from dllmark.detection.detector import Detector

SPACE = Payloads(["acme", "globex", "initech"])


@pytest.fixture
def payload_server(serve, key):
    return serve([key], with_model=False, payloads=SPACE)


def test_a_payload_is_named_as_the_library_names_it(payload_server, key, tokenizer, plain):
    acme = marked_text(key.derive("acme"), tokenizer, 80)
    globex = marked_text(key.derive("globex"), tokenizer, 80, seed=1)
    detector = PayloadDetector(key, SPACE, tokenizer)
    for text, payload in ((acme, "acme"), (globex, "globex"), (acme + globex, None), (plain, None)):
        found = detector.detect(text)
        expected = {**found.to_dict(), "green_fraction": found.green_fraction}
        assert payload_server.detect(text, payload=True) == expected
        assert expected["payload"] == payload
    assert "payload" not in payload_server.detect(acme)


def test_the_details_are_those_of_the_payload_that_fits(payload_server, key, tokenizer):
    text = marked_text(key.derive("acme"), tokenizer, 80)
    result = payload_server.detect(text, payload=True, explain=True, spans=True)
    own = Detector(key.derive("acme"), tokenizer)
    assert [token["mark"] for token in result["tokens"]] == [t.mark for t in own.explain(text)]
    assert len(result["spans"]) == 1


def test_numbers_of_16_bits_are_looked_for_where_nothing_else_is_said(serve, key, tokenizer):
    server = serve([key], with_model=False)
    text = marked_text(Payloads(16).key(key, 4711), tokenizer, 60)
    result = server.detect(text, payload=True)
    assert (result["payload"], result["keys_tried"]) == (4711, 65536)


REFUSED = {
    "every pair counted": ({"scoring": "all"}, 400, "distinct pairs"),
    "no flag": ({"payload": "4711"}, 422, "payload"),
}


@pytest.mark.parametrize(("options", "status", "reason"), REFUSED.values(), ids=REFUSED)
def test_it_refuses_what_payloads_cannot_have(payload_server, options, status, reason):
    response = payload_server.post("/v1/detect", **{"text": "A text.", "payload": True, **options})
    assert (response.status_code, reason in response.text) == (status, True)


def test_more_text_than_can_be_looked_through_is_refused(serve, key):
    server = serve([key], with_model=False)
    response = server.post("/v1/detect", text=["word " * 1000] * 3, payload=True)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "text_too_long")
    assert "10000 characters" in response.text
    assert server.post("/v1/detect", text=["word " * 1000] * 3).status_code == 200


def test_a_server_with_several_keys_looks_for_none(serve, key, other_key):
    response = serve([key, other_key], with_model=False).post(
        "/v1/detect", text="A text.", payload=True
    )
    assert (response.status_code, response.json()["error"]["code"]) == (400, "several_keys")


def test_a_public_server_does_not_say_which_customer(serve, key, tokenizer):
    server = serve([key], with_model=False, public=True, payloads=SPACE)
    text = marked_text(key.derive("acme"), tokenizer, 80)
    response = server.post("/v1/detect", text=text, payload=True)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "not_public")
    assert "acme" not in response.text and "payload" not in server.detect(text)
