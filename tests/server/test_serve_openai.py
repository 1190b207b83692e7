"""The official `openai` client works with a server's address as `base_url`."""

import json
import re
from pathlib import Path

import openai
import pytest

from dllmark import Detector
from dllmark.models.families import DREAM, EMBEDDED, LLADA
from dllmark.server import streams
from dllmark.server.openai_models import Message


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_completion_is_marked_and_says_by_which_key(client, key, server):
    request = {"prompt": "Once upon a time", "temperature": 1.5, "seed": 1}
    answer = client.completions.create(model="tiny", max_tokens=32, **request)
    [choice] = answer.choices
    written = server.post("/v1/generate", tokens=32, chat=False, **request).json()
    assert choice.text == written["text"]
    assert Detector(key).detect(choice.text).green_fraction > 0.6
    assert answer.watermark == key.identity.to_dict()
    assert answer.usage.completion_tokens == written["tokens"]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + written["tokens"]


def test_top_p_is_passed_on(client, server):
    request = {"prompt": "Once", "temperature": 1.5, "top_p": 0.3, "seed": 1}
    [choice] = client.completions.create(model="tiny", max_tokens=4, **request).choices
    written = server.post("/v1/generate", tokens=4, chat=False, **request).json()
    assert choice.text == written["text"]


def test_a_chat_is_answered_like_a_question(client, server):
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Who?"}], max_tokens=8, seed=2
    )
    written = server.post("/v1/generate", prompt="Who?", tokens=8, seed=2).json()
    assert answer.choices[0].message.content == written["text"]
    assert answer.choices[0].message.role == "assistant"


def test_a_second_turn_is_answered_with_the_first_before_it(client, server):
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Who?")]
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": role, "content": content} for role, content in turns],
        max_tokens=8,
        seed=2,
    )
    prompt = (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )
    written = server.post("/v1/generate", prompt=prompt, tokens=8, seed=2, chat=False).json()
    assert answer.choices[0].message.content == written["text"]


@pytest.mark.parametrize("tokens", [5, 40])
def test_a_text_has_at_most_the_tokens_asked_for(client, tokens):
    answer = client.completions.create(model="tiny", prompt="Hm", max_tokens=tokens, seed=3)
    assert answer.usage.completion_tokens == tokens
    assert answer.choices[0].finish_reason == "length"


def test_a_stream_adds_up_to_the_text(client):
    request = {"model": "tiny", "prompt": ["One", "Two words"], "max_tokens": 12, "seed": 4, "n": 2}
    whole = client.completions.create(**request)
    pieces, reasons = [[], [], [], []], {}
    stream = client.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    for chunk in chunks:
        [choice] = chunk.choices
        pieces[choice.index].append(choice.text)
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert ["".join(parts) for parts in pieces] == [choice.text for choice in whole.choices]
    assert any(len(parts) > 2 for parts in pieces)  # not all at once
    assert len({choice.text for choice in whole.choices}) == 4
    assert reasons == {at: choice.finish_reason for at, choice in enumerate(whole.choices)}
    assert (last.choices, last.usage) == ([], whole.usage)


def test_a_streamed_chat_adds_up_too(client, key, monkeypatch):
    monkeypatch.setattr(streams, "PING_SECONDS", 0.001)  # comments come between the pieces
    request = {"model": "tiny", "messages": [{"role": "user", "content": "Go on"}], "seed": 5}
    whole = client.chat.completions.create(**request, max_completion_tokens=8)
    stream = client.chat.completions.create(**request, max_completion_tokens=8, stream=True)
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert all(chunk.watermark == key.identity.to_dict() for chunk in chunks)


def test_what_is_refused_arrives_as_the_clients_own_errors(client):
    messages = [{"role": "user", "content": "Hello"}]
    with pytest.raises(openai.NotFoundError, match="the model here is tiny"):
        client.chat.completions.create(model="gpt", messages=messages)
    with pytest.raises(openai.BadRequestError, match="stop is not supported here") as refused:
        client.chat.completions.create(model="tiny", messages=messages, stop="x")
    assert refused.value.param == "stop"
    with pytest.raises(openai.BadRequestError, match="513 tokens asked for"):
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=513)
    with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=messages, temperature=3)


def test_options_that_ask_for_nothing_are_taken(client):
    answer = client.completions.create(
        model="tiny",
        prompt="Hi",
        max_tokens=4,
        top_p=None,
        presence_penalty=0,
        user="me",
        stop=None,
    )
    assert answer.usage.completion_tokens <= 4


def test_a_conversation_is_written_in_the_familys_own_way():
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Who?")]
    assert LLADA.conversation(turns) == (
        "<|startoftext|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_system_message_replaces_the_familys_own():
    text = DREAM.conversation([("system", "Be brief."), ("user", "Hi")])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    assert "helpful assistant" not in text


def test_without_a_system_role_its_message_stands_before_the_users():
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Who?")]
    assert EMBEDDED.conversation(turns) == (
        "<|im_start|>user\nBe brief.\n\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert EMBEDDED.conversation([("user", "One"), ("user", "Two")]) == (
        "<|im_start|>user\nOne\n\nTwo<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_message_may_come_in_parts_and_from_a_developer():
    parts = [{"type": "text", "text": "Who"}, {"type": "text", "text": "?"}]
    assert Message(role="developer", content=parts).turn == ("system", "Who?")


def test_the_examples_of_the_page_on_serving_work(server):
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    page = page.replace("http://127.0.0.1:8000", server.url).replace('"embedded"', '"tiny"')
    page = page.replace("max_tokens=128", "max_tokens=4")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(example, names)
    names["client"].close()
    assert names["answer"].choices[0].message.content
    [body] = re.findall(r"-d '(.*?)'", page)
    results = server.post("/v1/detect", **json.loads(body)).json()["results"]
    assert [result["verdict"] for result in results] == ["too short", "too short"]
