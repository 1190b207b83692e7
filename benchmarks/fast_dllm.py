"""Run Fast-dLLM's, LLaDA's and Dream's own sampling code with the watermark, and without.

Usage: python benchmarks/fast_dllm.py --source FAST_DLLM [--llada LLADA] [--dream DREAM] [--json]

FAST_DLLM is a checkout of NVlabs/Fast-dLLM, LLADA one of ML-GSAI/LLaDA, DREAM a folder with
`model/generation_utils.py` of a Dream checkpoint. None is on PyPI, so this is no part of the tests:
it says what was run on the day it was run. It needs what Fast-dLLM needs,
`pip install transformers==4.49.0 einops`.

The loops and the models' code are theirs, caches included; the weights are random and small, over a
vocabulary of 256 words. One text of 128 tokens at temperature 1 a row: z without and with the mark.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from dllmark import Detector, Tokenizer, WatermarkKey
from dllmark.integrations.dream import DllmarkLogitsHook
from dllmark.integrations.torch import watermarked
from dllmark.relation.key import Secret

TOKENS, BLOCK, MASK, END = 128, 32, 2, 1
SIZES = {"steps": 64, "gen_length": TOKENS, "block_length": BLOCK, "temperature": 1.0}
WORDS = ["<pad>", "<end>", "<mask>", *(f"w{number}" for number in range(3, 256))]
TOKENIZER = Tokenizer(
    json.dumps({
        "version": "1.0",
        "added_tokens": [
            {"id": id_, "content": word, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for id_, word in enumerate(WORDS[:3])
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: id_ for id_, word in enumerate(WORDS)},
            "unk_token": "<pad>",
        },
    }),
    "256 words",
)  # fmt: skip
KEY = WatermarkKey(Secret(b"fast-dllm's key."), 0.5, TOKENIZER.id)

Loop = Callable[[Any, torch.Tensor], torch.Tensor]


def load(folder: Path, *names: str) -> list[Any]:
    """Import modules from a folder; those of the folder before are forgotten."""
    for name in [name for name in sys.modules if name.split(".")[0] in {"model", "generate"}]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(folder))


def randomly(model: Any) -> Any:
    """Give a model weights from which its predictions differ, and keep it from special tokens."""
    random = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "norm" not in name and "ln_" not in name:
            parameter.data.normal_(0, 0.2, generator=random)

    def keep(_: Any, args: Any, output: Any) -> None:
        output.logits[..., :3] = -1e4

    model.register_forward_hook(keep)
    return model.eval().requires_grad_(False)


def llada_model(configuration: Any, modeling: Any) -> Any:
    """Return a small LLaDA made by its own code."""
    size = TOKENIZER.vocab_size
    return randomly(modeling.LLaDAModelLM(configuration.LLaDAConfig(
        d_model=64, n_heads=4, n_kv_heads=4, n_layers=2, mlp_hidden_size=128, vocab_size=size,
        embedding_size=size, max_sequence_length=512, mask_token_id=MASK, pad_token_id=0,
        eos_token_id=END, block_type="llama", layer_norm_type="rms", activation_type="silu",
        rope=True, alibi=False, flash_attention=False, include_bias=False, weight_tying=False,
        attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0, init_device="cpu",
    ), init_params=True))  # fmt: skip


def dream_model(modeling: Any, mixin: Any = None) -> Any:
    """Return a small Dream made by its own code, with its own sampler or that of a mixin."""
    config = modeling.DreamConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=64, intermediate_size=128, pad_token_id=0,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, mask_token_id=MASK,
        max_position_embeddings=512,
    )  # fmt: skip
    kind = modeling.DreamModel
    if mixin is not None:
        kind = type("DreamModel", (mixin, kind), {})
    return randomly(kind(config))


def dream_loop(**options: Any) -> Loop:
    """Return a call of `diffusion_generate`."""
    ids = {"mask_token_id": MASK, "pad_token_id": 0, "eos_token_id": END, "bos_token_id": END}
    sizes = {"max_new_tokens": TOKENS, "steps": 64, "temperature": 1.0}

    def loop(model: Any, prompt: torch.Tensor) -> torch.Tensor:
        return model.diffusion_generate(prompt, **sizes, **ids, **options)

    return loop


def measure(model: Any, loop: Loop, mark: Callable[[], Any]) -> dict[str, float]:
    """Write a text without and with the mark, from the same seed."""
    prompt = torch.tensor(TOKENIZER.encode("w5 w9 w17 w4 w30"))[None]
    detector = Detector(KEY, TOKENIZER)
    result: dict[str, float] = {}
    for name, marking in (("z without", nullcontext), ("z with", mark)):
        torch.manual_seed(0)
        with marking() as marker, redirect_stdout(StringIO()):
            text = loop(model, prompt)
        result[name] = detector.detect(text[0, prompt.shape[1] :].tolist()).z
        if marker is not None:
            result["biased"] = marker.biased
    result["masks left"] = int((text == MASK).sum())
    return result


def main() -> None:
    """Run each loop and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help="a checkout of Fast-dLLM")
    parser.add_argument("--llada", type=Path, help="a checkout of ML-GSAI/LLaDA")
    parser.add_argument("--dream", type=Path, help="a folder with model/generation_utils.py")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()

    rows: dict[str, dict[str, float]] = {}
    root = options.source / "v1" if (options.source / "v1").is_dir() else options.source
    names = ("model.configuration_llada", "model.modeling_llada", "generate")
    configuration, modeling, fast = load(root / "llada", *names)
    llada = llada_model(configuration, modeling)
    for name in ("generate", "generate_with_prefix_cache", "generate_with_dual_cache"):
        for more in ({}, {"threshold": 0.9, "steps": TOKENS}):
            run = getattr(fast, name)
            title = f"Fast-dLLM llada {name}" + (", threshold 0.9" if more else "")
            rows[title] = measure(
                llada,
                lambda model, prompt, run=run, more=more: run(
                    model, prompt, mask_id=MASK, **(SIZES | more)
                )[0],
                lambda: watermarked(llada, KEY, tokenizer=TOKENIZER),
            )
    if options.llada:
        [own] = load(options.llada, "generate")
        rows["LLaDA generate.py"] = measure(
            llada,
            lambda model, prompt: own.generate(model, prompt, mask_id=MASK, **SIZES),
            lambda: watermarked(llada, KEY, tokenizer=TOKENIZER),
        )
    names = ("model.modeling_dream", "model.generation_utils_block")
    modeling, block = load(root / "dream", *names)
    hooks: list[DllmarkLogitsHook] = []

    def hooked(model: Any, prompt: torch.Tensor) -> torch.Tensor:
        given = {"generation_logits_hook_func": hooks.pop()} if hooks else {}
        return dream_loop(alg="entropy", **given)(model, prompt)

    def hook() -> DllmarkLogitsHook:
        hooks.append(DllmarkLogitsHook(KEY, tokenizer=TOKENIZER, mask_id=MASK))
        return hooks[-1]

    rows["Fast-dLLM dream generation_utils, hook"] = measure(dream_model(modeling), hooked, hook)
    if options.dream:
        [own] = load(options.dream, "model.generation_utils")
        dream = dream_model(modeling, own.DreamGenerationMixin)
        rows["Dream generation_utils, hook"] = measure(dream, hooked, hook)
    blocks = dream_model(modeling, block.DreamGenerationMixin)
    for dual in (False, True):
        for alg in ("entropy", "confidence_threshold"):
            rows[f"Fast-dLLM dream generation_utils_block, {alg}, dual_cache={dual}"] = measure(
                blocks,
                dream_loop(alg=alg, block_length=BLOCK, dual_cache=dual),
                lambda: watermarked(blocks, KEY, tokenizer=TOKENIZER),
            )
    if options.json:
        print(json.dumps(rows))
        return
    for title, row in rows.items():
        print(f"{title:70}", *(f"{name} {value:.1f}" for name, value in row.items()), sep="  ")


if __name__ == "__main__":
    main()
