"""Weights in few bits: groups of 32 that share a scale, and training with them in the loop.

A group is stored as whole numbers of `BITS` bits times one scale in bfloat16, which is chosen so
that the group's largest weight is met exactly. Training computes with the rounded weights and moves
the exact ones by the gradient found there (the straight-through estimator).

Usage: python training/quantise.py settled/ --out model.safetensors
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dllmark.models.few_bits import GROUP, SCALE
from dllmark.models.transformer import Transformer

BITS = {"blocks": 4, "embedding": 8}
"""Bits of a weight, in the matrices of the blocks and in the table of tokens."""


def steps_and_scale(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return a matrix as whole numbers [..., groups, 32] and the scale of each group."""
    most = 2 ** (bits - 1)
    groups = weight.unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    largest = torch.where(-low > high, low, high)
    scale = (largest / -most).bfloat16().float()
    steps = (groups / torch.where(scale == 0, 1.0, scale)).round().clamp(-most, most - 1)
    return steps, scale


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Return a matrix as it will be read back from few bits.

    >>> rounded(torch.arange(-16.0, 16)[None] / 8, 8)[0, :3].tolist()
    [-2.0, -1.875, -1.75]
    """
    steps, scale = steps_and_scale(weight, bits)
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


def pack(folder: Path, path: Path) -> None:
    """Write a model's weights in few bits, as `dllmark.models.few_bits` reads them."""
    parts: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if weight.ndim != 2:
            parts[name] = weight.bfloat16()
            continue
        bits = BITS["embedding" if "embed" in name else "blocks"]
        steps, scale = steps_and_scale(weight.float(), bits)
        parts[name] = packed(steps.flatten(-2).to(torch.int8), bits)
        parts[f"{name}{SCALE}"] = scale.squeeze(-1).bfloat16()
    save_file(parts, path)


def packed(steps: Tensor, bits: int) -> Tensor:
    """Return steps of 4 bits two in a byte, the first in the lower half; others as they are."""
    if bits != 4:
        return steps
    raised = (steps + 8).to(torch.uint8)
    return raised[:, 1::2] << 4 | raised[:, ::2]


def main() -> None:
    """Pack the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="that adapt.py or settle.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="model.safetensors to write")
    arguments = parser.parse_args()
    pack(arguments.folder, arguments.out)


if __name__ == "__main__":
    main()
