"""Adding up green lists: from neighbours and their weights to the bias of each token.

Where the pairs are coloured depends on who can: a hash works on any device, a matrix lies in the
host's memory. The sums are the same, term by term in the order of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dllmark.relation.greenlist import GreenList, HashedGreenList

Contenders = Callable[[Tensor], Tensor | None]
"""From the most that logits can gain at each position, [B, K], to the tokens whose bias matters,
[B, K, V]; None for all."""

HASHED_AT_ONCE = 1 << 22
"""Pairs coloured at a time, which bounds the memory a step needs beside its logits."""


def rows_at_once(logits: Tensor) -> int:
    """Return how many rows over the vocabulary are worked on at a time."""
    return max(1, HASHED_AT_ONCE // logits.shape[-1])


def add(bias: Tensor, ask: Callable[[Any], Any], ids: Tensor, weights: Tensor) -> None:
    """Add to each row's bias its weighted green lists, candidate by candidate.

    Weights of 0 are left out on the CPU alone: to find them on a GPU would mean to wait for it.
    """
    for candidate, weight in zip(ids.T, weights.T, strict=True):
        if _answers_on(ask, bias.device):
            active = torch.arange(len(weight), device=weight.device)
        else:
            active = weight.nonzero()[:, 0]
        for part in torch.split(active, rows_at_once(bias)):
            green = _ask(ask, candidate[part])
            bias[part] += torch.where(green, weight[part, None], 0.0)


def add_some(
    bias: Tensor,
    green: GreenList,
    step: int,
    ids: Tensor,
    weights: Tensor,
    contenders: Tensor,
) -> None:
    """Do what `add` does for the contenders [N, V] alone, on a CPU.

    `step` is the neighbour's direction. Of each contender all candidates are coloured in one go.
    """
    at_once = max(1, rows_at_once(bias) // ids.shape[1])
    for part in torch.split(torch.arange(len(bias)), at_once):
        rows, tokens = contenders[part].nonzero(as_tuple=True)
        rows = part[rows]
        beside, terms = ids[rows], weights[rows]
        counts = terms != 0
        here = tokens[:, None].expand_as(beside)
        pair = (beside, here) if step < 0 else (here, beside)
        found = torch.from_numpy(green.pairs(*(side[counts].numpy() for side in pair)))
        terms[counts] = torch.where(found, terms[counts], 0.0)
        total = bias[rows, tokens]
        for term in terms.T:
            total += term
        bias[rows, tokens] = total


def _ask(ask: Callable[[Any], Any], ids: Tensor) -> Tensor:
    """Ask a green list about a tensor of tokens, on its own device where the list can."""
    if _answers_on(ask, ids.device):
        green: Tensor = ask(ids)
        return green
    return torch.from_numpy(ask(ids.cpu().numpy())).to(ids.device)


def _answers_on(ask: Callable[[Any], Any], device: torch.device) -> bool:
    """Return whether a green list works on the device; on the CPU, numpy is faster than torch."""
    return device.type != "cpu" and isinstance(getattr(ask, "__self__", None), HashedGreenList)
