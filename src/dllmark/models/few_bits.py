"""Weights stored in few bits: whole numbers in groups of 32, each group with a scale of its own.

A matrix [N, K] of 8 bits is stored as int8, one of 4 bits as uint8 [N, K/2]: 8 is added to each
number, and the first of two is the lower half of the byte. Beside it stand its scales [N, K/32] in
bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

GROUP = 32
"""Weights that share a scale."""

SCALE = ".scale"
"""What the name of a matrix's scales adds to the name of the matrix."""


def steps(stored: Tensor) -> Tensor:
    """Return the whole numbers [N, K] of a stored matrix.

    >>> steps(torch.tensor([[0x90, 0x7F]], dtype=torch.uint8))
    tensor([[-8,  1,  7, -1]], dtype=torch.int8)
    """
    if stored.dtype == torch.int8:
        return stored
    return torch.stack([stored & 15, stored >> 4], -1).flatten(-2).to(torch.int8) - 8


def expanded(stored: Tensor, scale: Tensor) -> Tensor:
    """Return a stored matrix as ordinary numbers, in float32.

    >>> expanded(torch.full((1, 32), 3, dtype=torch.int8), torch.tensor([[0.5]]))[0, 0]
    tensor(1.5000)
    """
    groups = steps(stored).view(*scale.shape, GROUP) * scale.float()[..., None]
    return groups.flatten(-2)


def has_kernel() -> bool:
    """Say whether torch multiplies by 4-bit weights on this processor, as on ARM (KleidiAI)."""
    kleidiai = getattr(torch.backends, "kleidiai", None)
    return bool(kleidiai is not None and kleidiai.is_available())


class FewBitsLinear(nn.Module):
    """A linear layer whose weights stay in 4 bits, where `has_kernel()`.

    Each row of what comes in is rounded to 8 bits for it, so that the result differs a little from
    that of the expanded weights: it is as fast as memory and integers allow instead.
    """

    def __init__(self, stored: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.rows, self.columns = stored.shape[0], 2 * stored.shape[1]
        packed = torch.ops.aten._dyn_quant_pack_4bit_weight(
            stored, scale.bfloat16(), None, GROUP, self.columns, self.rows
        )
        self.register_buffer("packed", packed, persistent=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., K] times the weights, [..., N]."""
        flat = x.reshape(-1, self.columns)
        result: Tensor = torch.ops.aten._dyn_quant_matmul_4bit(
            flat, self.packed, GROUP, self.columns, self.rows
        )
        result = result.view(*x.shape[:-1], self.rows)
        return result if self.bias is None else result + self.bias
