"""Muon (Jordan, 2024) for many matrices of few shapes: all of one shape are computed together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOMENTUM = 0.95


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [N, A, B] with their singular values moved close to 1."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalised momentum, as large as AdamW's would be."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take one step; every matrix must have a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for matrix in group["params"]:
                shapes.setdefault(matrix.shape, []).append(matrix)
            for shape, matrices in shapes.items():
                gradient = torch.stack([matrix.grad for matrix in matrices])
                state = self.state[matrices[0]]  # of all matrices of this shape
                if not state:
                    state["momentum"] = torch.zeros_like(gradient)
                state["momentum"].lerp_(gradient, 1 - MOMENTUM)
                update = orthogonal(gradient.lerp_(state["momentum"], MOMENTUM))
                pace = group["lr"] * 0.2 * max(shape) ** 0.5
                torch._foreach_add_(matrices, list(update.unbind()), alpha=-pace)
