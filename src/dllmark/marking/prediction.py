"""What stands in for a token that is not written yet: the likeliest ones and their probabilities.

Libraries sum a softmax in different orders and round its exponentials differently. Here the
exponentials are integers, whose sum does not depend on the order, so a probability has the same
bits on every device, and a text does not depend on which path computed its watermark.
"""

from __future__ import annotations

import torch
from torch import Tensor

FARTHEST = 44.0
"""Logits this far below the best one count as this far: e^-44 is nothing."""

ONE = 1 << 24
"""A difference of 1 between two logits, in fixed point."""


POWER_OF_TWO = (234782, -2739202, 20572593, -119165869, 515877823, -1488521945, 2147483645)
"""A polynomial within 3e-9 of 2^-f for f from 0 to 1, its highest power first, times 2^31."""


def comparable(logits: Tensor) -> Tensor:
    """Return the logits as float32 in which NaN is the largest value, and -0 is 0."""
    return (logits.float() + 0.0).nan_to_num(torch.inf, torch.inf, -torch.inf)


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ids of the `count` largest comparable logits, [..., count], and these logits.

    The lowest id comes first among equals, which `torch.topk` does not promise: it is given
    integers that all differ, a logit's bits above and its id below.

    >>> import torch
    >>> likeliest(torch.tensor([1.0, 3.0, 3.0]), 2)[0].tolist()
    [1, 2]
    """
    bits = logits.view(torch.int32)
    sortable = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    places = torch.arange(logits.shape[-1], device=logits.device)
    best = ((sortable << 32) | (0xFFFFFFFF - places)).topk(count).values
    ids = 0xFFFFFFFF - (best & 0xFFFFFFFF)
    return ids, logits.gather(-1, ids)


def probabilities(logits: Tensor, best: Tensor) -> Tensor:
    """Return the softmax of the logits [..., V] at their largest ones, `best` [..., C].

    It is NaN where the largest is not finite.

    >>> import torch
    >>> probabilities(torch.zeros(4), torch.zeros(1)).tolist()
    [0.25]
    """
    total = shares(best[..., :1] - logits).sum(-1, keepdim=True)
    return shares(best[..., :1] - best).float() / total.float()


def shares(gap: Tensor) -> Tensor:
    """Return about 2^44 · e^-gap as 64-bit integers.

    The gap times log2(e) has a whole part, which is a shift, and a fraction f, which takes the
    polynomial. What is not a number counts as far.

    >>> import torch
    >>> (shares(torch.tensor([0.0, 0.5, torch.inf])) / 2**44).tolist()
    [1.0, 0.6065306663513184, 0.0]
    """
    near = torch.where(gap < FARTHEST, gap, FARTHEST)
    exponent = ((near * ONE).to(torch.int64) * 6196328019) >> 25
    f = exponent & 0x7FFFFFFF
    power = torch.zeros_like(f)
    for coefficient in POWER_OF_TWO:
        power *= f
        power >>= 31
        power += coefficient
    return (power << 13) >> (exponent >> 31)
