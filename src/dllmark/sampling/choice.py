"""Which masked positions a step reveals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dllmark.sampling.settings import Parallel, Sampler


def choose(sampler: Sampler, score: Tensor, masked: Tensor, count: Tensor) -> Tensor:
    """Return [B, W]: the positions to reveal, all of them masked ones."""
    chosen = highest(score, masked, count)
    if isinstance(sampler, Parallel):
        chosen |= masked & (score > math.log(sampler.threshold))
    return chosen


def highest(score: Tensor, masked: Tensor, count: Tensor) -> Tensor:
    """Return [B, W]: the `count` [B] masked positions of each row with the highest score.

    A row has at least as many masks.

    >>> score, masked = torch.tensor([[0.3, 0.9, 0.5]]), torch.tensor([[True, False, True]])
    >>> highest(score, masked, torch.tensor([1])).tolist()
    [[False, False, True]]
    """
    score = score.clamp(min=torch.finfo(score.dtype).min).masked_fill(~masked, -torch.inf)
    rank = score.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return rank < count[:, None]


def positions_of(chosen: Tensor, first: int) -> Tensor:
    """Return [B, K]: where each row is True, counted from `first`, then -1 to the widest row.

    >>> positions_of(torch.tensor([[False, True, True], [True, False, False]]), 10).tolist()
    [[11, 12], [10, -1]]
    """
    width = int(chosen.sum(1).max())
    order = chosen.long().argsort(dim=-1, descending=True, stable=True)[:, :width]
    return torch.where(chosen.gather(1, order), order + first, -1)
