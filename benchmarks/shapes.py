"""Models of the shapes of LLaDA-8B and Dream-7B with random weights, and texts half written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer as Raw
from tokenizers.models import WordLevel

from dllmark.models.families import DREAM, LLADA
from dllmark.models.loading import Model
from dllmark.models.transformer import Config, Transformer
from dllmark.relation.tokenizer import Tokenizer
from dllmark.sampling.canvas import Canvas

PROMPT, TOKENS, BLOCK = 30, 256, 32

SHAPES = {
    "llada": Config(
        vocab_size=126_464, width=4096, layers=32, heads=32, kv_heads=32, mlp_width=12_288,
        max_length=4096,
    ),
    "dream": Config(
        vocab_size=152_064, width=3584, layers=28, heads=28, kv_heads=4, mlp_width=18_944,
        max_length=4096, rope_theta=1e6, norm_eps=1e-6, qkv_bias=True, shifted=True,
    ),
}  # fmt: skip
FAMILIES = {"llada": LLADA, "dream": DREAM}


def build(name: str, device: str) -> Model:
    """Return a model of that shape; on a CPU one with two narrow layers and few tokens."""
    config, dtype = SHAPES[name], torch.bfloat16
    if device == "cpu":
        small = {"width": config.heads * 4, "layers": 2, "mlp_width": 256, "vocab_size": 4096}
        config, dtype = replace(config, **small), torch.float32
    with torch.device("meta"):
        transformer = Transformer(config)
    transformer = transformer.to(dtype).to_empty(device=device).requires_grad_(False)
    for parameter in transformer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    words = {f"w{number}": number for number in range(config.vocab_size - 3)}
    raw = Raw(WordLevel({**words, "<|mask|>": len(words), "<|end|>": len(words) + 1}, "w0"))
    raw.add_special_tokens(["<|mask|>", "<|end|>"])
    mask, end = len(words), len(words) + 1
    return Model(
        name=name, family=FAMILIES[name], transformer=transformer.eval(),
        tokenizer=Tokenizer(raw.to_str(), name), mask_id=mask, end_ids=(end,), pad_id=end,
    )  # fmt: skip


def canvas_of(model: Model, batch: int, first: int) -> Canvas:
    """Return texts that are written up to the position `first`, and masked from there on."""
    length = PROMPT + TOKENS
    ids = np.random.default_rng(0).integers(0, model.tokenizer.vocab_size - 2, (batch, length))
    tokens = torch.from_numpy(ids).to(model.device)
    tokens[:, first:] = model.mask_id
    revealed = (torch.arange(length, device=model.device) < first).expand(batch, -1).clone()
    return Canvas(tokens, revealed, None, torch.zeros_like(revealed), PROMPT)


def weight_bytes(model: Model) -> int:
    """Return the bytes a step reads of the weights: all but the embedding."""
    sizes = {name: p.numel() * p.element_size() for name, p in model.transformer.named_parameters()}
    return sum(sizes.values()) - sizes["embedding.weight"]


def flops(model: Model, batch: int, positions: int) -> float:
    """Return the operations of a pass over all positions with the head at some of each text."""
    config, length = model.config, PROMPT + TOKENS
    blocks = sum(p.numel() for p in model.transformer.blocks.parameters())
    attention = 4 * length * length * config.width * config.layers
    head = 2 * positions * config.width * config.vocab_size
    return float(batch * (2 * blocks * length + attention + head))
