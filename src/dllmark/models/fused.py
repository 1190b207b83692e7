"""The transformer's element-wise work on a GPU: one kernel each where torch launches several.

    rotate  the rotary embedding of queries and keys
    swiglu  the gate of a feed-forward layer
    norm    RMSNorm, and before it what a layer adds to the stream

`transformer.py` has the same in torch, which defines what is computed. A kernel reads and writes
the model's number format and computes in float32, so it rounds less often than torch does. Nothing
here waits for the GPU, and nothing is compiled again for another batch or length.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The number formats that the kernels take."""

HEADS_AT_ONCE, GATED_AT_ONCE = 16, 1024
"""How many heads of a position, and elements of a gated row, one program works on."""


class Heads(NamedTuple):
    """Queries or keys, where to write them turned, and how many heads a position has of them."""

    x: Tensor
    turned: Tensor
    heads: int


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn queries [B, P, H, D] and keys, whose heads may be fewer, by their positions' angles.

    `cos` and `sin` [P, 1, D] are those of `transformer.rotary_angles`.
    """
    query, key = query.contiguous(), key.contiguous()
    queries, keys = (Heads(x, torch.empty_like(x), x.shape[2]) for x in (query, key))
    batch, length, _, width = query.shape
    groups, key_groups = (triton.cdiv(one.heads, HEADS_AT_ONCE) for one in (queries, keys))
    with torch.cuda.device_of(query):
        _rotate[batch * length, groups + key_groups](
            queries, keys, cos, sin, length, groups,
            width // 2, triton.next_power_of_2(width // 2), HEADS_AT_ONCE,
        )  # fmt: skip
    return queries.turned, keys.turned


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    gate, up = gate.contiguous(), up.contiguous()
    gated, width = torch.empty_like(gate), gate.shape[-1]
    grid = (gate.numel() // width, triton.cdiv(width, GATED_AT_ONCE))
    with torch.cuda.device_of(gate):
        _swiglu[grid](gate, up, gated, width, GATED_AT_ONCE)
    return gated


def norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + added, or x where nothing is added, and the RMSNorm of that."""
    x, width = x.contiguous(), x.shape[-1]
    total, normed = x if added is None else torch.empty_like(x), torch.empty_like(x)
    with torch.cuda.device_of(x):
        _norm[x.numel() // width,](
            x, x if added is None else added.contiguous(), weight, total, normed, width, eps,
            added is not None, triton.next_power_of_2(width), num_warps=8,
        )  # fmt: skip
    return total, normed


@triton.jit
def _turn(
    some, token, group, cos, sin,
    half: tl.constexpr, half_block: tl.constexpr, group_block: tl.constexpr,
):  # fmt: skip
    """Write some heads of a token, turned; each vector's halves are its coordinates."""
    head = group * group_block + tl.arange(0, group_block)[:, None]
    column = tl.arange(0, half_block)[None, :]
    inside = (head < some.heads) & (column < half)
    first = (token * some.heads + head) * (2 * half) + column
    one = tl.load(some.x + first, mask=inside, other=0).to(tl.float32)
    two = tl.load(some.x + first + half, mask=inside, other=0).to(tl.float32)
    kind = some.turned.dtype.element_ty
    tl.store(some.turned + first, (one * cos - two * sin).to(kind), mask=inside)
    tl.store(some.turned + first + half, (two * cos + one * sin).to(kind), mask=inside)


@triton.jit(do_not_specialize=["length"])
def _rotate(
    queries, keys, cos, sin, length, groups,
    half: tl.constexpr, half_block: tl.constexpr, group_block: tl.constexpr,
):  # fmt: skip
    """Write some heads of a token, of the queries or of the keys."""
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, half_block)[None, :]
    angle = token % length * (2 * half) + half + column  # in the second half, sines have no sign
    c = tl.load(cos + angle, mask=column < half, other=0)
    s = tl.load(sin + angle, mask=column < half, other=0)
    if group < groups:
        _turn(queries, token, group, c, s, half, half_block, group_block)
    else:
        group -= groups
        _turn(keys, token, group, c, s, half, half_block, group_block)


@triton.jit
def _swiglu(gate, up, gated, width, block: tl.constexpr):
    """Write a part of a gated row."""
    column = tl.program_id(1) * block + tl.arange(0, block)
    at = tl.program_id(0).to(tl.int64) * width + column
    g = tl.load(gate + at, mask=column < width, other=0).to(tl.float32)
    u = tl.load(up + at, mask=column < width, other=0).to(tl.float32)
    result = g / (1 + tl.exp(-g)) * u
    tl.store(gated + at, result.to(gated.dtype.element_ty), mask=column < width)


@triton.jit
def _norm(
    x, added, weight, total, normed, width, eps, adds: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Write the sum of a row, and that divided by its root mean square, times the weights."""
    column = tl.arange(0, block)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    kind = normed.dtype.element_ty
    by = tl.load(weight + column, mask=inside, other=0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    if adds:
        value += tl.load(added + at, mask=inside, other=0).to(tl.float32)
        tl.store(total + at, value.to(kind), mask=inside)
        value = value.to(kind).to(tl.float32)  # as it is stored, so that both paths norm the same
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    tl.store(normed + at, (value * scale * by).to(kind), mask=inside)
