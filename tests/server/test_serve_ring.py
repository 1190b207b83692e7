"""A server with a key ring: its keys change without a restart, and no text is without a mark."""

import threading
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from samples import marked_text

from dllmark.detection.detector import Detector
from dllmark.errors import KeyRingError, MismatchError
from dllmark.relation.key import TokenizerId, WatermarkKey
from dllmark.relation.keyring import KeyRing
from dllmark.server.service import Service

NOON = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)
REQUEST = {"prompt": "Why is the sky blue?", "tokens": 8, "seed": 7}


class Clock:
    """A clock that tests set."""

    time = NOON

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(key, tmp_path):
    """A ring with `blog`, and from the next day on `december`."""
    ring = KeyRing.create(tmp_path / "ring")
    ring.add(key, "blog", NOON - timedelta(days=1))
    ring.derive("december", begins=NOON + timedelta(days=1))
    return tmp_path / "ring"


@pytest.fixture
def served(serve, folder, clock):
    """A server with that ring and the tiny model."""
    return serve(KeyRing(folder, clock=clock))


def marked_with(served):
    """The id of the key that marks now."""
    return served.post("/v1/generate", **REQUEST).json()["watermark"]["key_id"]


def test_the_key_changes_with_the_date_without_a_restart(served, key, clock):
    assert marked_with(served) == key.id
    clock.time += timedelta(days=2)
    assert marked_with(served) == key.derive("december").id
    clock.time -= timedelta(days=2)  # a clock that jumps back brings no older key back
    assert marked_with(served) == key.derive("december").id


def test_what_another_process_changes_counts_for_the_next_request(served, folder, key, tokenizer):
    text = marked_text(key.derive("urgent"), tokenizer)
    found = served.detect(text)
    assert (found["verdict"], found["label"]) == ("not detected", None)
    KeyRing(folder).derive("urgent", begins=NOON)
    assert marked_with(served) == key.derive("urgent").id
    found = served.detect(text)
    assert (found["verdict"], found["keys_tried"], found["label"]) == ("watermarked", 3, "urgent")
    KeyRing(folder).retire("urgent")
    assert marked_with(served) == key.id
    assert served.detect(text)["key_id"] == key.derive("urgent").id  # a retired key recognises


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/completions"])
def test_a_text_ends_with_the_key_it_began_with(served, folder, key, gate, path):
    """The key is retired, and another one takes over, while the text is written."""
    body = REQUEST if path == "/v1/generate" else {
        "model": "tiny", "prompt": REQUEST["prompt"], "max_tokens": 8, "seed": 7,
    }  # fmt: skip
    answers = []
    writing = threading.Thread(target=lambda: answers.append(served.post(path, **body).json()))
    writing.start()
    gate.wait_for_model()
    changed = KeyRing(folder)
    changed.derive("next", begins=NOON)
    changed.retire("blog")
    gate.open()
    writing.join()
    assert answers[0]["watermark"]["key_id"] == key.id
    if path == "/v1/generate":
        assert answers[0]["detection"]["keys_tried"] == 3
    assert marked_with(served) == key.derive("next").id


def test_the_steps_of_a_text_show_the_colours_of_its_own_key(serve, served, folder, key, gate):
    """Against a server with that key alone, while another key takes over."""
    events = []
    watching = threading.Thread(target=lambda: events.extend(served.events(**REQUEST)))
    watching.start()
    gate.wait_for_model()
    KeyRing(folder).derive("next", begins=NOON)
    gate.open()
    watching.join()
    alone = serve([key]).events(**REQUEST)
    assert any(data["marks"] for name, data in alone if name == "step")
    assert events[:-1] == alone[:-1]


def test_without_a_key_that_may_mark_nothing_is_written(served, folder, key, logged, tokenizer):
    KeyRing(folder).retire("blog")
    text = marked_text(key, tokenizer)
    for path, body in (
        ("/v1/generate", REQUEST),
        ("/v1/completions", {"model": "tiny", "prompt": "Why?", "max_tokens": 8}),
        ("/v1/generate", {**REQUEST, "stream": True}),
    ):
        answer = served.post(path, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_key")
        assert key.id not in answer.text and str(folder) not in answer.text
    assert "the next one begins 2026-11-17 12:00 UTC" in logged.text
    assert served.detect(text)["verdict"] == "watermarked"
    assert served.metric("dllmark_tokens_total") == 0


def test_a_ring_that_breaks_is_told_to_the_operator_and_not_to_clients(served, folder, logged):
    (folder / "ring.json").write_text("{")
    answer = served.post("/v1/detect", text="A text.")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_key")
    assert str(folder) not in answer.text
    assert "restore it from a backup" in logged.text


def test_the_server_tells_the_key_that_marks_first_and_not_thousands(served, folder, key):
    ring = KeyRing(folder)
    for number in range(30):
        ring.derive(f"customer-{number}", begins=NOON - timedelta(days=2))
    keys = served.client.get("/v1/server").json()["keys"]
    assert (keys[0]["id"], len(keys)) == (key.id, 20)


def test_a_label_chooses_which_keys_may_mark(serve, folder, clock, key):
    ring = KeyRing(folder, clock=clock)
    ring.derive("customer-17/2026-11", begins=NOON - timedelta(days=9))
    ring.derive("customer-17/2026-12", begins=NOON + timedelta(days=1))
    served = serve(ring, label="customer-17")
    assert marked_with(served) == key.derive("customer-17/2026-11").id
    clock.time += timedelta(days=1)
    assert marked_with(served) == key.derive("customer-17/2026-12").id


def test_keys_of_other_tokenizers_recognise_and_do_not_mark(
    serve, folder, clock, key, small_key, small_tokenizer, tmp_path
):
    (tmp_path / "tokenizer.json").write_text(small_tokenizer.definition())
    place = TokenizerId(str(tmp_path / "tokenizer.json"), small_tokenizer.fingerprint)
    moved = WatermarkKey(small_key.secret, 0.5, place)
    ring = KeyRing(folder, clock=clock)
    ring.add(moved, "other model", NOON)
    served = serve(ring)
    assert marked_with(served) == key.id
    detector = Detector(moved, small_tokenizer)
    ids = [3]
    for _ in range(60):  # go on with a word that makes a green pair which is new
        pairs = set(pairwise(ids))
        ids.append(
            next(
                word
                for word in range(3, small_tokenizer.vocab_size)
                if (ids[-1], word) not in pairs and detector.detect([ids[-1], word]).green
            )
        )
    found = served.detect(" ".join(f"w{word - 3}" for word in ids))
    assert (found["verdict"], found["key_id"]) == ("watermarked", moved.id)


def test_a_server_does_not_start_with_a_ring_that_cannot_mark(tokenizer, model, folder, clock):
    KeyRing(folder).retire("blog")
    with pytest.raises(KeyRingError, match="the next one begins"):
        Service(KeyRing(folder, clock=clock), tokenizer, model)
    Service(KeyRing(folder, clock=clock), tokenizer).close()  # to detect, it needs none that marks


def test_a_server_does_not_start_with_a_ring_for_other_models(small_tokenizer, folder):
    with pytest.raises(MismatchError, match="none of the keys was made for the tokenizer small"):
        Service(KeyRing(folder), small_tokenizer)


def test_secrets_of_a_ring_are_in_no_answer(served, key):
    for path in ("/v1/server", "/metrics", "/openapi.json"):
        answer = served.client.get(path).text
        for each in (key, key.derive("december")):
            assert each.secret.reveal().hex() not in answer


def test_a_key_that_has_marked_enough_is_followed_by_the_next(served, folder, key):
    KeyRing(folder).rotate_after(3)
    body = {"model": "tiny", "prompt": ["One", "Two"], "max_tokens": 8}
    assert served.post("/v1/completions", **body).json()["watermark"]["key_id"] == key.id
    assert served.post("/v1/generate", **REQUEST, watermark=False).json()["watermark"] is None
    assert KeyRing(folder).texts() == {key.id: 2}
    assert marked_with(served) == key.id
    assert marked_with(served) == key.derive("blog#2").id


def test_a_text_that_a_client_leaves_is_counted(served, folder, key, gate):
    """Else who cuts texts off before their end could have any number of them."""
    with served.client.stream("POST", "/v1/generate", json={**REQUEST, "stream": True}) as answer:
        gate.wait_for_model()
        answer.close()
    gate.open()
    assert KeyRing(folder).texts() == {key.id: 1}


def test_texts_are_written_where_they_cannot_be_counted(served, folder, key, logged):
    (folder / "texts.json").write_text("{")
    assert marked_with(served) == key.id
    assert "texts that a key marks are not counted: " in logged.text


def test_a_server_whose_keys_are_all_retired_still_tells_of_them(serve, folder, clock, key):
    changed = KeyRing(folder)
    changed.retire("blog")
    changed.retire("december")
    served = serve(KeyRing(folder, clock=clock), with_model=False)
    keys = served.client.get("/v1/server").json()["keys"]
    assert [each["id"] for each in keys] == [key.id, key.derive("december").id]
