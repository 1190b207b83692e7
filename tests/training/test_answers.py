"""training/answers.py on a model of a few thousand weights, against Qwen2 of `transformers`."""

import json
import sys

import numpy as np
import pytest
import torch
from checkpoints import ORDINARY, dream_config, write_checkpoint
from tokenizers import Tokenizer

import adapt
import answers
import documents
from dllmark import load_model

transformers = pytest.importorskip("transformers")

END, TURN, CHAT_END, MASK = range(ORDINARY, ORDINARY + 4)
GREEDY = answers.Kind(48, 1e-6, "<|im_end|>")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Texts of few tokens."""
    monkeypatch.setattr(answers, "SEEN", (16, 48))


@pytest.fixture
def folder(tmp_path):
    """A small checkpoint."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder, dream_config())
    return folder


@pytest.fixture
def small(folder):
    """Its tokenizer."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture
def writer(folder, small):
    """A model that writes four texts at once."""
    model = load_model(str(folder), device="cpu", dtype="float32").transformer
    return answers.Writer(model, 4, small)


@torch.inference_mode()
def greedy(model, ids, length, never):
    """Return what Qwen2 goes on with, each token from the whole text before it."""
    text = list(ids)
    while len(text) < length:
        logits = model(torch.tensor([text])).logits[0, -1]
        logits[never] = -torch.inf
        text.append(int(logits.argmax()))
        if text[-1] in (END, CHAT_END):
            break
    return text[len(ids) :]


@pytest.fixture
def qwen(folder):
    """The same weights in the causal model of `transformers`."""
    config = dream_config()
    names = set(config) - {"model_type", "architectures", "auto_map"}
    settings = transformers.Qwen2Config(**{name: config[name] for name in names})
    model = transformers.Qwen2ForCausalLM(settings).eval()
    model.load_state_dict(write_checkpoint(folder, config))
    return model


def test_a_position_is_computed_as_in_qwen(qwen, writer, monkeypatch):
    given = torch.randint(ORDINARY, (4, 40), generator=torch.Generator().manual_seed(0))
    logits, draw = [], writer.draw
    monkeypatch.setattr(writer, "draw", lambda some: draw(logits.append(some.clone()) or some))
    writer.write([(ids, GREEDY) for ids in given.tolist()])
    with torch.inference_mode():
        wanted = qwen(given).logits
    assert torch.allclose(torch.stack(logits[:40], 1), wanted, atol=1e-4)


def test_texts_go_on_as_qwen_goes_on(qwen, writer, small):
    random = np.random.default_rng(0)
    texts = [random.integers(0, ORDINARY, size).tolist() for size in (3, 20, 9)]
    kinds = [GREEDY, GREEDY, GREEDY._replace(length=30)]
    begun = list(zip(texts, kinds, strict=True))
    never = answers.forbidden(small, dream_config()["vocab_size"])
    wanted = [greedy(qwen, ids, kind.length, never) for ids, kind in begun]
    assert max(map(len, wanted)) > answers.SEEN[0]
    for _ in range(2):  # what the batch before left in the cache is not seen
        assert writer.write(begun) == wanted


def test_a_draw_follows_the_likely_tokens_alone(writer):
    logits = torch.full((4, len(writer.forbidden)), -20.0)
    logits[:, [5, 6, 7]] = torch.tensor([1, 0.5, 0.04]).log()
    logits[:, [TURN, MASK, len(writer.forbidden) - 1]] = 50.0
    drawn = torch.cat([writer.draw(logits) for _ in range(1000)])
    assert set(drawn.tolist()) == {5, 6}
    assert abs((drawn == 5).float().mean() - 2 / 3) < 0.03
    logits[:, CHAT_END] = 50.0
    assert writer.draw(logits).tolist() == [CHAT_END] * 4


def test_what_was_not_ended_stops_after_its_last_sentence(small):
    chat = answers.Prompt("chats", "", [TURN, 1, TURN])
    plain = answers.Prompt("teacher", "", small.encode("The grass").ids)

    def said(prompt, text, *end):
        found = answers.closed(prompt, [*small.encode(text).ids, *end], small)
        return found and (small.decode(found.ids[found.prompt :], False), found.prompt)

    assert said(chat, "It is. And", END) == ("It is. And<|im_end|>", 3)
    assert said(chat, "It is. And") == ("It is.<|im_end|>", 3)
    assert said(chat, "It is so.\n2. As red.\n3. ") == ("It is so.\n2. As red.<|im_end|>", 3)
    assert said(chat, "It is") is None
    assert said(plain, " is", CHAT_END) == ("The grass is<|endoftext|>", 0)
    assert said(plain, " is red. The") == ("The grass is red.", 0)


def test_short_answers_and_texts_that_repeat_themselves_are_left_out():
    chat, held_out = (answers.Prompt("chats", split, [1]) for split in ("", ".held_out"))
    plain = answers.Prompt("teacher", "", [1])
    good, loops, brief = list(range(40)), [5, 6, 7, 8] * 10, list(range(10))
    cases = [(chat, good, True), (chat, loops, False), (held_out, loops, True)]
    cases += [(chat, brief, False), (plain, brief, True), (plain, loops, False)]
    for prompt, ids, kept in cases:
        assert answers.worth_keeping(prompt, answers.Text([1, *ids], 1)) == kept


@pytest.fixture
def packed(tmp_path, folder, monkeypatch):
    """Chats and plain texts as `documents.py` packs them, and a corpus of people."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    long = "The grass is green, and the lists are green or red in 2026. " * 3
    rows = [{"text": long} if at % 2 else {"prompt": f"{at}?", "text": long} for at in range(402)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (corpus / "teacher.jsonl").write_text(lines)
    (corpus / "usgov.jsonl").write_text("".join(json.dumps({"text": long}) + "\n" for _ in rows))
    given = [*corpus.iterdir(), "--tokenizer", folder / "tokenizer.json"]
    given += ["--out", tmp_path / "packed"]
    monkeypatch.setattr(sys, "argv", ["documents.py", *map(str, given)])
    documents.main()
    return tmp_path / "packed"


def test_the_folder_is_one_that_training_reads(packed, folder, tmp_path, monkeypatch):
    kinds = {name: kind._replace(length=400) for name, kind in answers.KINDS.items()}
    monkeypatch.setattr(answers, "KINDS", kinds)
    monkeypatch.setattr(answers, "SEEN", (64, 400))
    monkeypatch.setattr(answers, "closed", ended)
    given = [packed, "--start", folder, "--tokenizer", folder / "tokenizer.json"]
    given += ["--out", tmp_path / "own", "--batch", "16", "--seconds", "0.01"]
    monkeypatch.setattr(sys, "argv", ["answers.py", *map(str, given)])
    monkeypatch.setattr(answers, "HELD_OUT", 0)
    answers.main()
    own = tmp_path / "own"
    chats = np.load(own / "chats.rows.npy")
    tokens = np.load(own / "chats.tokens.npy")
    assert tokens.dtype == np.load(packed / "chats.tokens.npy").dtype
    prompts = {tuple(prompt.ids) for prompt in answers.read(packed, "chats", "")}
    for start, size, prompt in chats:
        assert tuple(tokens[start : start + prompt].tolist()) in prompts
        assert tokens[start + size - 1] == CHAT_END
    for name in ("tokens", "rows"):
        there = (own / f"usgov.{name}.npy").read_bytes()
        assert there == (packed / f"usgov.{name}.npy").read_bytes()
    data = adapt.Data(own, END, "cpu")
    assert data.corpora.keys() == {"chats", "teacher", "usgov"}
    rows, _ = data.draw(192, 0.1, torch.Generator().manual_seed(0))
    assert rows.shape[1] == 192 and not (rows == MASK).any()
    sample = (own / "sample.jsonl").read_text().splitlines()
    assert 0 < len(sample) <= answers.SAMPLE
    assert not any(answers.SYSTEM in json.loads(line)["text"] for line in sample)


def test_a_question_is_asked_for_prose(packed, small):
    prompt = answers.read(packed, "chats", "")[0]
    text = small.decode(answers.Instructions(small).before(prompt), skip_special_tokens=False)
    start, turn, reply = text.split("<|im_start|>")[1:]
    assert start == f"system\n{answers.SYSTEM}<|im_end|>\n"
    assert turn.removeprefix("user\n").removesuffix(f"{answers.ASKED}<|im_end|>\n")[-1] == "?"
    assert reply == "assistant\n"


def ended(prompt, said, tokenizer):
    """Close every text where it is: a random model finishes no sentence."""
    return CLOSED(prompt, [*(id_ for id_ in said if id_ not in (END, CHAT_END)), END], tokenizer)


CLOSED = answers.closed


def test_prompts_of_all_kinds_are_mixed_and_those_held_out_come_first(packed, monkeypatch):
    monkeypatch.setattr(answers, "HELD_OUT", 3)
    first, second, *_ = answers.batches(packed, 12)
    assert [prompt.split for prompt in first] == [".held_out"] * len(first)
    assert sum(prompt.corpus == "teacher" for prompt in second) in (2, 3)
    assert all(len(p.ids) == answers.BEGINNING for p in second if p.corpus == "teacher")
