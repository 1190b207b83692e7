"""Linear layers as a CPU multiplies by them fastest.

With a cache, a step computes some sixteen positions. For so few, torch's own product on x86 is
slow, and that of oneDNN, which comes with torch, is not: it reorders the weights once. And layers
that take the same input are one layer here: it is read, and rounded, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

TOGETHER = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "gate_up": ("gate", "up"),
}
"""Layers of a block that take the same input, by the name of what takes their place."""


def has_kernel() -> bool:
    """Say whether this torch and this processor multiply by reordered weights."""
    return (
        torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class PackedLinear(nn.Module):
    """A linear layer with reordered weights, where `has_kernel()`; it has no gradient."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., K] times the weights, [..., N]."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, "none", [], ""
        )
        return result


def pack(transformer: nn.Module) -> None:
    """Reorder the weights of all linear layers, one after the other."""
    for name, parts in joined(transformer):
        weight = torch.cat([_linear(transformer, part).weight.detach() for part in parts])
        put(transformer, name, parts, PackedLinear(weight, joined_bias(transformer, parts)))


def joined(transformer: nn.Module) -> Iterator[tuple[str, list[str]]]:
    """Yield the linear layers, those with the same input together: the name of each, and its parts.

    >>> from dllmark.models.transformer import Config, Transformer
    >>> config = Config(vocab_size=50, width=16, layers=1, heads=2, kv_heads=1,
    ...                 mlp_width=32, max_length=8)
    >>> [name.removeprefix("blocks.0.") for name, _ in joined(Transformer(config))]
    ['attention.qkv', 'gate_up', 'attention.out', 'down', 'head']
    """
    names = [name for name, part in transformer.named_modules() if isinstance(part, nn.Linear)]
    blocks = dict.fromkeys(
        match[0] for match in map(re.compile(r"blocks\.\d+\.").match, names) if match
    )
    found: set[str] = set()
    for block in blocks:
        for new, parts in TOGETHER.items():
            own = [block + part for part in parts]
            if set(own) <= set(names):
                found |= set(own)
                yield block + new, own
    yield from ((name, [name]) for name in names if name not in found)


def joined_bias(transformer: nn.Module, parts: list[str]) -> Tensor | None:
    """Return the bias of layers that become one; either all have one, or none."""
    biases = [_linear(transformer, part).bias for part in parts]
    return None if biases[0] is None else torch.cat([bias.detach() for bias in biases])


def put(transformer: nn.Module, name: str, parts: list[str], layer: nn.Module) -> None:
    """Put a layer in the place of its parts."""
    for part in parts:
        parent, _, own = part.rpartition(".")
        delattr(transformer.get_submodule(parent), own)
    parent, _, own = name.rpartition(".")
    setattr(transformer.get_submodule(parent), own, layer)


def _linear(transformer: nn.Module, name: str) -> nn.Linear:
    layer = transformer.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer
