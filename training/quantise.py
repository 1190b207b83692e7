"""Weights in few bits: groups of 32 that share a scale, and training with them in the loop.

A group is stored as whole numbers of `BITS` bits times one scale in float16, which is chosen so
that the group's largest weight is met exactly. Training computes with the rounded weights and moves
the exact ones by the gradient found there (the straight-through estimator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from dllmark.models.transformer import Transformer

GROUP = 32
BITS = {"blocks": 4, "embedding": 8}
"""Bits of a weight, in the matrices of the blocks and in the table of tokens."""


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Return a matrix as it will be read back from few bits.

    >>> rounded(torch.arange(-16.0, 16)[None] / 8, 8)[0, :3].tolist()
    [-2.0, -1.875, -1.75]
    """
    most = 2 ** (bits - 1)
    groups = weight.unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    largest = torch.where(-low > high, low, high)
    scale = (largest / -most).half().float()
    steps = (groups / torch.where(scale == 0, 1.0, scale)).round().clamp(-most, most - 1)
    return (steps * scale).flatten(-2)


@cache
def compiled() -> Callable[[Tensor, int], Tensor]:
    """Return `rounded` as one kernel of a GPU."""
    return torch.compile(rounded, dynamic=False)


@contextmanager
def in_few_bits(model: Transformer) -> Iterator[None]:
    """Let the model have rounded weights in this block, and its own again after it."""
    matrices = [(p, BITS["blocks"]) for p in model.blocks.parameters() if p.ndim == 2]
    matrices.append((model.embedding.weight, BITS["embedding"]))
    exact = [parameter.detach().clone() for parameter, _ in matrices]
    with torch.no_grad():
        for parameter, bits in matrices:
            function = compiled() if parameter.is_cuda else rounded
            parameter.copy_(function(parameter, bits))
    try:
        yield
    finally:
        with torch.no_grad():
            for (parameter, _), kept in zip(matrices, exact, strict=True):
                parameter.copy_(kept)
