"""Which masked positions a step reveals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dllmark.sampling.settings import Llada, Llada2, Parallel, Sampler


def choose(sampler: Sampler, score: Tensor, masked: Tensor, count: Tensor, most: int) -> Tensor:
    """Return [B, `most`]: the places in the block to reveal, then -1; all of them masked ones.

    They are the `count` [B] best, for `Parallel` and `Llada2` also all that are certain enough.
    """
    if isinstance(sampler, Llada) and sampler.apart and most > 1:
        return highest_apart(score, masked, count, most)
    least = math.inf
    if isinstance(sampler, Parallel | Llada2):
        least = math.log(sampler.threshold)
    return highest(score, masked, count, most, least)


def edits(sampler: Llada2, score: Tensor, changed: Tensor) -> Tensor:
    """Return [B, W]: the places whose token is `changed` by one that is certain enough, and -1.

    >>> score, changed = torch.tensor([[0.9, 0.9, 0.2]]).log(), torch.tensor([[True, False, True]])
    >>> edits(Llada2(edit_threshold=0.5), score, changed).tolist()
    [[0, -1, -1]]
    """
    assert sampler.edit_threshold is not None
    places = torch.arange(score.shape[1], device=score.device)
    return torch.where(changed & (score > math.log(sampler.edit_threshold)), places, -1)


def highest(
    score: Tensor, masked: Tensor, count: Tensor, most: int, enough: float = math.inf
) -> Tensor:
    """Return [B, `most`]: the masked places of each row with the highest score, then -1.

    They are the first `count` [B], and all whose score is above `enough`. The width of the result
    is given, not computed, so that a GPU need not be waited for.

    >>> score, masked = torch.tensor([[0.3, 0.9, 0.5]]), torch.tensor([[True, False, True]])
    >>> highest(score, masked, torch.tensor([1]), most=2).tolist()
    [[2, -1]]
    """
    score = score.clamp(min=torch.finfo(score.dtype).min).masked_fill(~masked, -torch.inf)
    values, places = (one[:, :most] for one in score.sort(descending=True, stable=True))
    rank = torch.arange(most, device=score.device)
    wanted = (rank < count[:, None]) | (values > enough)
    return torch.where(wanted & (values > -torch.inf), places, -1)


def highest_apart(score: Tensor, masked: Tensor, count: Tensor, most: int) -> Tensor:
    """Return what `highest` does, but no two neighbours while there is a place that is none.

    >>> score, masked = torch.tensor([[0.3, 0.9, 0.5, 0.1]]), torch.ones(1, 4, dtype=torch.bool)
    >>> highest_apart(score, masked, torch.tensor([3]), most=3).tolist()
    [[1, 3, 2]]
    """
    score = score.clamp(min=torch.finfo(score.dtype).min)
    near, chosen = torch.zeros_like(masked), []
    for number in range(most):
        place = score.masked_fill(~away_from(near, masked), -torch.inf).argmax(1)
        chosen.append(torch.where((number < count) & masked.any(1), place, -1))
        near, masked = near | beside(place, masked), masked.scatter(1, place[:, None], False)
    return torch.stack(chosen, 1)


def away_from(near: Tensor, masked: Tensor) -> Tensor:
    """Return [B, W]: the masked places that are not `near`, or where there are none, all masked."""
    free = masked & ~near
    return torch.where(free.any(1, keepdim=True), free, masked)


def beside(place: Tensor, like: Tensor) -> Tensor:
    """Return, [B, W] like another, the places next to one [B] in each row.

    >>> beside(torch.tensor([2]), torch.zeros(1, 4)).int().tolist()
    [[0, 1, 1, 1]]
    """
    at = torch.arange(like.shape[1], device=place.device)
    return (at - place[:, None]).abs() <= 1
