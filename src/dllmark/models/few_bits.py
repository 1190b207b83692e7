"""Weights stored in few bits: whole numbers in groups of 32, each group with a scale of its own.

A matrix [N, K] of 8 bits is stored as int8, one of 4 bits as uint8 [N, K/2]: 8 added to each number,
the first of two in the lower half of the byte. Beside it stand its scales [N, K/32] in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

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


def expanded(stored: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return all weights of a file as ordinary numbers; those not in few bits are only converted."""
    weights: dict[str, Tensor] = {}
    for name, part in stored.items():
        scale = stored.get(f"{name}{SCALE}")
        if scale is not None:
            groups = steps(part).unflatten(-1, (-1, GROUP)) * scale.float()[..., None]
            weights[name] = groups.flatten(-2).to(dtype)
        elif not name.endswith(SCALE):
            weights[name] = part.to(dtype)
    return weights
