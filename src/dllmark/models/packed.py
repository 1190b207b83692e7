"""Linear layers whose weights lie in memory as an x86 processor multiplies by them fastest.

With a cache, a step computes some sixteen positions. For so few, torch's own product reads weights
in an order that takes three times as long; oneDNN, which comes with torch, reorders them once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def has_kernel() -> bool:
    """Say whether this torch and this processor multiply by reordered weights."""
    return (
        torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class PackedLinear(nn.Module):
    """A linear layer with reordered weights, where `has_kernel()`; it has no gradient."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., K] times the weights, [..., N]."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, "none", [], ""
        )
        return result


def pack(transformer: nn.Module) -> None:
    """Reorder the weights of all linear layers, one after the other.

    >>> layers = nn.Sequential(nn.Linear(8, 4))
    >>> if has_kernel():
    ...     pack(layers)
    >>> layers(torch.ones(2, 8)).shape
    torch.Size([2, 4])
    """
    names = [name for name, part in transformer.named_modules() if isinstance(part, nn.Linear)]
    for name in names:
        linear = transformer.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        transformer.set_submodule(name, PackedLinear(linear))
