"""Predicting a neighbour that is not revealed yet: its likeliest tokens and their probabilities.

Libraries sum a softmax in different orders and round its exponentials differently. Here the
exponentials are integers, whose sum does not depend on the order, so a probability has the same
bits on every device, and a text does not depend on which path computed its watermark.

Numbers in fixed point are integers with so many binary digits behind the point:

    gap       GAP_BITS       how far a logit is below the largest one
    log2(e)   LOG2_E_BITS    LOG2_E = 6196328019, as e^-gap = 2^-(gap · log2(e))
    exponent  FRACTION_BITS  their product, shifted right by EXPONENT_SHIFT = 25
    2^-f      FRACTION_BITS  for the fraction f of the exponent, by a polynomial
    e^-gap    EXP_BITS       2^-f shifted left by POWER_SHIFT = 13, and right by the whole part

The kernels compute the same with the same constants.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dllmark.marking.state import BiasSettings, State, texts_of

GAP_BITS, LOG2_E_BITS, FRACTION_BITS, EXP_BITS = 24, 32, 31, 44

FARTHEST = 44.0
"""Logits this far below the best one count as this far: e^-44 is nothing. FARTHEST · LOG2_E in
fixed point is still below 2^63."""

LOG2_E = round(math.log2(math.e) * 2**LOG2_E_BITS)
EXPONENT_SHIFT = GAP_BITS + LOG2_E_BITS - FRACTION_BITS
POWER_SHIFT = EXP_BITS - FRACTION_BITS
FRACTION = (1 << FRACTION_BITS) - 1
"""The mask of an exponent's fraction."""

POWER_OF_TWO = (234782, -2739202, 20572593, -119165869, 515877823, -1488521945, 2147483645)
"""A polynomial within 3e-9 of 2^-f for f from 0 to 1, its highest power first, times 2^31."""

LOGITS_AT_ONCE = 1 << 22
"""Logits worked on at a time, which bounds the memory a step needs beside those it is given."""


def rows_at_once(width: int) -> int:
    """Return how many rows of so many logits are worked on at a time."""
    return max(1, LOGITS_AT_ONCE // width)


def predict(state: State, settings: BiasSettings, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the predicted tokens at some places of the logits [B, K]: [B, K, top_k], and weights.

    For a place of -1 they are any. A place that comes twice is computed once on the CPU alone: to
    find it on a GPU would mean to wait for it.
    """
    covered = state.logits.shape[1]
    places = torch.where(index >= 0, texts_of(index) * covered + index, 0).flatten()
    back = None
    if state.logits.device.type == "cpu":
        places, back = torch.unique(places, return_inverse=True)
    ids, weights = [], []
    for part in torch.split(places, rows_at_once(state.vocab_size)):
        logits = comparable(state.logits.flatten(0, 1)[part])
        if settings.weighted:
            tokens, largest = top_k(logits, settings.top_k)
            weights.append(probabilities(logits, largest).nan_to_num(0.0))
        else:
            tokens = logits.argmax(-1, keepdim=True)  # the first among equals
            weights.append(torch.ones_like(tokens, dtype=torch.float32))
        ids.append(tokens)
    shape = (*index.shape, settings.top_k)
    all_ids, all_weights = torch.cat(ids), torch.cat(weights)
    if back is not None:
        all_ids, all_weights = all_ids[back], all_weights[back]
    return all_ids.view(shape), all_weights.view(shape)


def comparable(logits: Tensor) -> Tensor:
    """Return the logits as float32 in which NaN is the largest value, and -0 is 0."""
    return (logits.float() + 0.0).nan_to_num(torch.inf, torch.inf, -torch.inf)


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ids of the `k` largest comparable logits, [..., k], and these logits.

    The lowest id comes first among equals, which `torch.topk` does not promise: it is given
    integers that all differ, a logit's bits above and its id below.

    >>> import torch
    >>> top_k(torch.tensor([1.0, 3.0, 3.0]), 2)[0].tolist()
    [1, 2]
    """
    bits = logits.view(torch.int32)
    sortable = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    places = torch.arange(logits.shape[-1], device=logits.device)
    best = ((sortable << 32) | (0xFFFFFFFF - places)).topk(k).values
    ids = 0xFFFFFFFF - (best & 0xFFFFFFFF)
    return ids, logits.gather(-1, ids)


def probabilities(logits: Tensor, best: Tensor) -> Tensor:
    """Return the softmax of the logits [..., V] at their largest ones, `best` [..., C].

    It is NaN where the largest is not finite.

    >>> import torch
    >>> probabilities(torch.zeros(4), torch.zeros(1)).tolist()
    [0.25]
    """
    total = fixed_point_exp(best[..., :1] - logits).sum(-1, keepdim=True)
    return fixed_point_exp(best[..., :1] - best).float() / total.float()


def fixed_point_exp(gap: Tensor) -> Tensor:
    """Return about 2^44 · e^-gap as 64-bit integers; what is not a number counts as far.

    >>> import torch
    >>> (fixed_point_exp(torch.tensor([0.0, 0.5, torch.inf])) / 2**44).tolist()
    [1.0, 0.6065306663513184, 0.0]
    """
    near = torch.where(gap < FARTHEST, gap, FARTHEST)
    exponent = ((near * 2**GAP_BITS).to(torch.int64) * LOG2_E) >> EXPONENT_SHIFT
    f = exponent & FRACTION
    power = torch.zeros_like(f)
    for coefficient in POWER_OF_TWO:
        power *= f
        power >>= FRACTION_BITS
        power += coefficient
    exponential: Tensor = (power << POWER_SHIFT) >> (exponent >> FRACTION_BITS)
    return exponential
