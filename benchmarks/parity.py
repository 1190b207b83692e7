"""LLaDA2 beside its published modelling code: the same logits, and the same texts.

    PYTHONPATH=tests/support python benchmarks/parity.py path/to/modelling/code

The folder is yours: it holds one `configuration_*.py` and one `modeling_*.py`, as they lie beside
LLaDA2's weights, and they are run. Checkpoints are small and random, in float32 on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers.modeling_rope_utils
from checkpoints import llada2_config, llada2_weights, write_checkpoint, write_weights
from torch import Tensor

from dllmark.models.loading import Model, load_model
from dllmark.sampling.canvas import Canvas
from dllmark.sampling.loop import denoise
from dllmark.sampling.settings import Llada2

BLOCK = 32
CASES = [
    (seed, prompt, tokens, threshold, edit)
    for seed in range(4)
    for prompt, tokens in ((5, 40), (70, 50))
    for threshold, edit in ((0.95, None), (0.3, None), (0.3, 0.3), (0.2, 0.15))
]


def published(folder: Path) -> tuple[Any, Any]:
    """Return the published configuration and model classes of a folder."""
    sys.path.insert(0, str(folder.resolve().parent))
    modules: list[ModuleType] = []
    for kind in ("configuration", "modeling"):
        [path] = folder.glob(f"{kind}_*.py")
        modules.append(importlib.import_module(f"{folder.resolve().name}.{path.stem}"))
    return modules[0].LLaDA2MoeConfig, modules[1].LLaDA2MoeModelLM


def default_rotation(config: Any, device: Any = None, **_: Any) -> tuple[Tensor, float]:
    """Return the rotation that transformers 5 no longer has under its name."""
    width = int(config.head_dim * config.partial_rotary_factor)
    return config.rope_theta ** (-torch.arange(0, width, 2).float() / width), 1.0


def models(folder: Path, classes: tuple[Any, Any], seed: int) -> tuple[Model, Any]:
    """Return one random model twice: ours, and the published code's with the same weights."""
    config = llada2_config()
    write_checkpoint(folder, config)
    random = torch.Generator().manual_seed(seed)
    shapes = {name: tensor.shape for name, tensor in llada2_weights(config).items()}
    weights = {name: torch.randn(size, generator=random) * 0.6 for name, size in shapes.items()}
    write_weights(folder, weights)
    settings = classes[0](**{k: v for k, v in config.items() if k != "model_type"})
    settings._attn_implementation = "eager"
    theirs = classes[1](settings).eval()
    theirs.load_state_dict(weights)
    return replace(load_model(str(folder), device="cpu"), end_ids=()), theirs


def canvas_of(model: Model, prompt: Tensor, length: int) -> Canvas:
    """Return a prompt with masks after it, up to the end of a block."""
    start = prompt.shape[1]
    tokens = torch.full((1, -(-length // BLOCK) * BLOCK), model.mask_id)
    tokens[:, :start] = prompt
    revealed = torch.arange(tokens.shape[1])[None] < start
    return Canvas(tokens, revealed, None, torch.zeros_like(revealed), start)


@torch.inference_mode()
def main(code: Path) -> None:
    """Compare them, and print what was found."""
    transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS.setdefault("default", default_rotation)
    classes = published(code)
    largest, same = 0.0, []
    for seed, length, tokens, threshold, edit in CASES:
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = models(Path(folder), classes, seed)
        prompt = torch.randint(0, 300, (1, length), generator=torch.Generator().manual_seed(seed))
        compute = theirs.forward

        def forward(
            *arguments: Any, compute: Any = compute, ours: Model = ours, **more: Any
        ) -> Any:
            output = compute(*arguments, **more)
            nonlocal largest
            logits = ours.transformer(arguments[0], block_length=BLOCK)
            largest = max(largest, float((logits - output.logits).abs().max()))
            output.logits[..., ours.mask_id] = -torch.inf  # ours never writes these
            output.logits[..., ours.tokenizer.vocab_size :] = -torch.inf
            return output

        theirs.forward = forward
        expected = theirs.generate(
            inputs=prompt, temperature=0.0, block_length=BLOCK, gen_length=tokens,
            threshold=threshold, editing_threshold=2.0 if edit is None else edit,
            eos_early_stop=False, eos_id=-1, mask_id=ours.mask_id,
        )[0, -tokens:]  # fmt: skip
        sampler = Llada2(threshold, edit, block_length=BLOCK, temperature=0)
        canvas = canvas_of(ours, prompt, length + tokens)
        for _ in denoise(ours, canvas, sampler, None, torch.Generator()):
            pass
        same.append(torch.equal(canvas.tokens[0, length : length + tokens], expected))
    print(json.dumps({"texts": len(same), "the same": sum(same), "logits differ by": largest}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("code", type=Path, help="a folder with the published modelling code")
    main(parser.parse_args().code)
