"""The pages on the adapters are true: their examples run, with small models for large ones."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from cached_toys import CachedToy, FastDreamStandIn, fast_dllm_generate
from samples import word_ids
from sglang_release import Server, config, install, load_plugins
from toys import Toy, llada_generate

from dllmark.integrations import dream
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import load_tokenizer

PAGES = Path(__file__).parents[2] / "docs" / "integrations"


def blocks(page, language):
    """The examples of a page in a language."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def run(key_file, monkeypatch, capsys):
    """Run a page's examples beside a key file: each prints what the block after it shows.

    They know `names`, and nothing of each other. `smaller` replaces numbers in them: the small
    models have no need to write as much.
    """
    monkeypatch.chdir(key_file.parent)

    def run(page, names, smaller=None):
        examples, outputs = blocks(page, "python"), blocks(page, "text")
        for large in smaller or {}:
            assert any(large in example for example in examples)
        for example, shown in zip(examples, outputs, strict=True):
            for large, small in (smaller or {}).items():
                example, shown = example.replace(large, small), shown.replace(large, small)
            exec(compile(example, page, "exec"), dict(names))
            assert capsys.readouterr().out == shown

    return run


@pytest.fixture
def prompt(tokenizer):
    return torch.tensor(tokenizer.encode("Why is the sky blue?"))[None]


@pytest.fixture
def toy(tokenizer):
    """A model for the embedded tokenizer that writes whole words."""
    return Toy(tokenizer.vocab_size, tokenizer.vocab_size, allowed=word_ids(tokenizer).tolist())


def test_dream(run, tokenizer, prompt):
    words = word_ids(tokenizer).tolist()
    sizes = (tokenizer.vocab_size, 152_064)
    model = FastDreamStandIn(*sizes, mask_id=dream.MASK_ID, allowed=words)
    run(
        "dream.md",
        {"model": model, "input_ids": prompt},
        {
            "tokens=256": "tokens=16", "steps=256": "steps=4",
            "tokens=128": "tokens=4", "steps=64": "steps=2",
        },
    )  # fmt: skip


def test_torch(run, tokenizer, prompt):
    words = word_ids(tokenizer).tolist()
    toy = CachedToy(tokenizer.vocab_size, tokenizer.vocab_size, allowed=words)

    def dual(model, prompt, **sizes):
        return fast_dllm_generate(model, prompt, dual=True, **sizes), None

    names = {
        "model": toy, "input_ids": prompt, "generate": llada_generate,
        "generate_with_dual_cache": dual,
    }  # fmt: skip
    run("torch.md", names, {"steps=128": "steps=8", "length=128": "length=32", "=32": "=16"})


def test_diffusers(run, toy):
    pytest.importorskip("diffusers", "0.42", reason="diffusers 0.42 needs Python 3.11")
    from transformers import PreTrainedTokenizerFast

    from dllmark.relation.tokenizer import EMBEDDED

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(EMBEDDED), mask_token="<|mask|>", eos_token="<|endoftext|>"
    )
    run(
        "diffusers.md", {"model": toy, "tokenizer": tokenizer}, {"256": "24, num_inference_steps=6"}
    )


def test_transformers(run, tokenizer, prompt):
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=16, intermediate_size=32,
        num_hidden_layers=1, num_attention_heads=2, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(settings)
    run("transformers.md", {"model": model, "inputs": {"input_ids": prompt}})


def test_diffusion_gemma(run, key_file, small_key, small_tokenizer):
    """With 35 words: every step biases all of them, at every place."""
    diffusers = pytest.importorskip("diffusers", "0.42", reason="diffusers 0.42 needs Python 3.11")
    from tiny_gemma import tiny_gemma

    small_tokenizer._backend.save(str(key_file.parent / "tokenizer.json"))
    tokenizer = load_tokenizer(str(key_file.parent / "tokenizer.json"))
    key_file.unlink()
    WatermarkKey(small_key.secret, 0.5, tokenizer.id).save(key_file)
    prompt = torch.tensor([[5, 9, 17, 4, 30]])

    class Processor:
        eos_token_id = None

        def apply_chat_template(self, messages, **options):
            return {"input_ids": prompt}

        def batch_decode(self, texts, **options):
            return [tokenizer.decode(text.tolist()) for text in texts]

    model = tiny_gemma(35, allowed=list(range(3, 35)))
    pipe = diffusers.DiffusionGemmaPipeline(model, diffusers.EntropyBoundScheduler(), Processor())
    pipe.set_progress_bar_config(disable=True)
    torch.manual_seed(0)
    names = {"model": model, "inputs": {"input_ids": prompt}, "pipe": pipe}
    fewer = {"tokens=256": "tokens=192, max_denoising_steps=10"}
    run("diffusion-gemma.md", names, fewer | {"length=256": "length=192, num_inference_steps=10"})


def test_sglang(run, toy, prompt, tokenizer, key_file, monkeypatch):
    table = install(monkeypatch)
    load_plugins()
    [settings] = blocks("sglang.md", "yaml")
    settings = yaml.safe_load(settings.replace("/etc/dllmark/my.key", str(key_file)))
    [command] = blocks("sglang.md", "console")
    name = re.search(r"--dllm-algorithm (\S+)", command)[1]
    server = Server(table[name](config(settings)), toy)
    [text] = server.serve([prompt[0]], blocks=6)
    run("sglang.md", {"text": tokenizer.decode(text[prompt.shape[1] :].tolist())})


def test_the_comparison_names_every_adapter():
    listed = set(
        re.findall(r"\]\(([\w-]+)\.md\)", (PAGES / "README.md").read_text(encoding="utf-8"))
    )
    adapters = {path.stem for path in Path(dream.__file__).parent.glob("*.py")}
    others = {"__init__", "marker", "audit", "prompt_memory"}
    assert listed == {name.replace("_", "-") for name in adapters - others}
    assert listed == {page.stem for page in PAGES.glob("*.md")} - {"README"}
