"""Dipper: its input format, window by window, with a T5 of random weights."""

import json
import sys

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

import dllmark.attacks.dipper
from dllmark.attacks.dipper import Dipper, windows
from dllmark.errors import DllmarkError, InputError, ModelError

pytestmark = pytest.mark.usefixtures("one_core")

TEXT = "One is here. Two is\nthere!  Three is not? Four is. Five."
WORDS = ["<pad>", "</s>", "<unk>", *TEXT.split(), "lexical", "order", "=", "<sent>", "</sent>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tiny T5 and a tokenizer of a few words."""
    path = tmp_path_factory.mktemp("dipper")
    words = list(dict.fromkeys(WORDS))
    backend = Tokenizer(WordLevel({word: id_ for id_, word in enumerate(words)}, "<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(path)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(words), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(path)
    return path


@pytest.fixture
def dipper(folder, monkeypatch):
    """Dipper with the tiny T5; answers are short, since one without training seldom ends."""
    monkeypatch.setattr(dllmark.attacks.dipper, "MOST_TOKENS", 12)
    return Dipper(str(folder))


def test_each_window_is_asked_for_behind_what_was_written(dipper, monkeypatch):
    prompts, answers = [], ["first answer.", "second."]

    def rewrite(prompt):
        prompts.append(prompt)
        return answers[len(prompts) - 1]

    monkeypatch.setattr(dipper, "_rewrite", rewrite)
    assert dipper.paraphrase(TEXT) == "first answer. second."
    assert prompts == [
        "lexical = 80, order = 100 <sent> One is here. Two is there! Three is not? </sent>",
        "lexical = 80, order = 100 first answer. <sent> Four is. Five. </sent>",
    ]


def test_diversities_and_interval_may_be_chosen(folder, monkeypatch):
    dipper, prompts = Dipper(str(folder), lexical=60, order=40, interval=9), []
    monkeypatch.setattr(dipper, "_rewrite", lambda prompt: prompts.append(prompt) or "x")
    dipper.paraphrase(TEXT)
    assert prompts == [f"lexical = 40, order = 60 <sent> {' '.join(TEXT.split())} </sent>"]


def test_the_model_writes_and_the_seed_decides(dipper):
    first, same, other = (dipper.paraphrase(TEXT, seed) for seed in (1, 1, 2))
    assert first == same != other
    assert first
    assert {*first.split()} <= {*WORDS} - {"<pad>", "</s>"}


def test_randomness_elsewhere_is_left_alone(dipper):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    dipper.paraphrase(TEXT)
    assert torch.equal(torch.rand(3), expected)


def test_an_empty_text_stays_empty(dipper):
    assert dipper.paraphrase(" \n") == ""


CUT = {
    "a sentence": ("One.", ["One."]),
    "no end": ("one two", ["one two"]),
    "quotes": ('"No." He left. "Why?" She did.', ['"No."', "He left.", '"Why?"', "She did."]),
    "brackets": ("He (too.) Then (I.) (She!) left.", ["He (too.)", "Then (I.)", "(She!) left."]),
    "numbers": ("It is 3.5 m. 4 of them.", ["It is 3.5 m.", "4 of them."]),
    "an abbreviation": ("See e.g. the book. Stop.", ["See e.g. the book.", "Stop."]),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("text", "sentences"), CUT.values(), ids=CUT)
def test_sentences_end_before_a_capital_or_a_digit(text, sentences):
    assert windows(text, 1) == sentences
    assert " ".join(windows(text, 3)) == text


def test_what_cannot_be_loaded_or_asked_is_told(folder, tmp_path):
    with pytest.raises(ModelError, match=r"cannot load Dipper from .* give a folder"):
        Dipper(str(tmp_path), tokenizer=str(folder))
    with pytest.raises(InputError, match=r"order diversity is 0, 20, .* got 30"):
        Dipper(str(folder), order=30)
    with pytest.raises(InputError, match="at least 1 sentence"):
        Dipper(str(folder), interval=0)


@pytest.mark.parametrize("option", ["--model", "--tokenizer"])
def test_a_path_that_does_not_exist_is_refused_without_asking_the_hub(
    run, folder, tmp_path, monkeypatch, option
):
    def ask_the_hub(*arguments, **options):
        pytest.fail("the hub was asked")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", ask_the_hub)
    (tmp_path / "in.jsonl").write_text('"One."\n')
    command = ["attack", "dipper", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl"]
    result = run(*command, "--model", folder, option, "/nonexistent")
    assert result.status == 2
    assert "there is no folder /nonexistent: give a folder, or a model on the" in result.err
    assert not (tmp_path / "out.jsonl").exists()


def test_without_transformers_it_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DllmarkError, match=r"pip install 'dllmark\[torch,eval\]'"):
        Dipper("owner/name")


def test_the_command_writes_what_dipper_does_and_continues(run, folder, dipper, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "One is here.", "n": 1}\n"Four is. Five."\n')
    output = tmp_path / "out.jsonl"
    command = ["attack", "dipper", tmp_path / "in.jsonl", "-o", output, "--model", folder]
    assert run(*command).status == 0
    whole = output.read_bytes()
    first, second = map(json.loads, whole.splitlines())
    assert first["text"] == dipper.paraphrase("One is here.", 1 << 32)
    assert first["n"] == 1
    settings = {"name": "dipper", "lexical": 20, "order": 0, "interval": 3, "seed": 0, "line": 2}
    assert second["attack"].items() >= settings.items()
    output.write_bytes(whole[: whole.index(b"\n") + 9])
    assert run(*command).err.endswith(f"{output}: 1 written, 1 already there\n")
    assert output.read_bytes() == whole


def test_the_command_refuses_a_seed_below_0(run, tmp_path):
    (tmp_path / "in.jsonl").write_text('"One."\n')
    command = ["attack", "dipper", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl"]
    assert "seed is at least 0; got -1" in run(*command, "--seed", "-1").err
