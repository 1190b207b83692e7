"""The watermark's bias as two to four GPU kernels: the same bits as the torch path, no waiting.

    rank    the likeliest tokens in each part of an unrevealed neighbour's logits
    weigh   each part's share of the softmax, where the likeliest are weighted by it
    settle  a list for each position and side: the tokens that stand there, and their weights
    paint   a keyed hash for each token of the vocabulary; writes the biased logits

Nothing here waits for the GPU or copies to it, so a CUDA graph can hold the whole step. Sums have
one order and `enable_fp_fusion` is off, so that the bits are those of the torch path.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dllmark.marking.bias import Contenders
from dllmark.marking.kernel_hash import DeviceKey, siphash, word
from dllmark.marking.prediction import FARTHEST, ONE, POWER_OF_TWO

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The logits that the kernels take."""

MOST_CANDIDATES = 64
"""The most stand-ins for one neighbour: each takes a round over its logits."""

RANKED_AT_ONCE, PAINTED_AT_ONCE = 2048, 512
"""How much of the vocabulary one program of the kernels looks at."""

_SEARCHED_AT_ONCE = tl.constexpr(256)
_LOWEST = tl.constexpr(-(1 << 63))
_FARTHEST, _ONE = tl.constexpr(FARTHEST), tl.constexpr(float(ONE))
_POWER_OF_TWO = tl.constexpr(POWER_OF_TWO)

_EXACT = {"enable_fp_fusion": False, "sanitize_overflow": False}
_VARYING = ["each", "length", "covered", "parts", "slots", "delta", "gamma"]
_VARYING += [f"{name}_stride" for name in ("tokens", "revealed", "positions", "rows")]
"""Numbers that vary between steps: kernels are not compiled again for special values of these."""


def bias(
    tokens: Tensor,
    revealed: Tensor,
    logits: Tensor,
    positions: Tensor,
    rows: Tensor | None,
    contenders: Contenders | None,
    *,
    key: DeviceKey,
    scored: Tensor,
    delta: float,
    gamma: float,
    sides: int,
    candidates: int,
    weighted: bool,
) -> Tensor:
    """Return what `Watermark.bias` returns, which describes the tensors.

    sides       1: the left neighbour counts; 2: the right one too
    candidates  how many tokens stand in for an unrevealed neighbour; 0: it gives no term
    weighted    whether each counts by its probability

    >>> biased = bias(tokens, revealed, logits, positions, None, None, **settings)  # doctest: +SKIP
    """
    tokens, revealed, positions, logits = map(_dense, (tokens, revealed, positions, logits))
    listed = rows is not None
    rows = positions if rows is None else _dense(rows)
    (batch, length), (_, each), (_, covered, size) = tokens.shape, positions.shape, logits.shape
    biased = logits.new_empty(batch, each, size)
    if biased.numel() == 0:
        return biased

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty((batch * each, *shape), dtype=dtype, device=logits.device)

    parts, slots = triton.cdiv(size, RANKED_AT_ONCE), max(candidates, 1)
    asked, ranked, shares = empty(sides), empty(sides, parts, slots), empty(sides, parts)
    chosen, totals = empty(), empty(dtype=torch.float32)
    ids, weights = empty(sides, slots), empty(sides, slots, dtype=torch.float32)
    live = empty(sides, dtype=torch.int32)
    sequence = (
        tokens, tokens.stride(0), revealed, revealed.stride(0), positions, positions.stride(0),
        rows, rows.stride(0), each, length, covered,
    )  # fmt: skip
    table = (logits, logits.stride(0), logits.stride(1), size)
    prediction = (asked, ranked, shares, parts, slots, triton.next_power_of_2(parts))
    terms = (chosen, ids, weights, live, totals)
    with torch.cuda.device_of(logits):
        grid = (batch * each, parts, sides)
        if candidates:
            _rank[grid](
                *sequence, *table, asked, ranked, parts, slots, listed, RANKED_AT_ONCE, **_EXACT
            )
        if weighted:
            _weigh[grid](*table, each, *prediction, RANKED_AT_ONCE, **_EXACT)
        _settle[grid[:1]](
            *sequence, size, scored, *prediction, triton.next_power_of_2(parts * slots), *terms,
            delta, listed, sides, candidates > 0, weighted, **_EXACT,
        )  # fmt: skip
        some = None if contenders is None else contenders(totals.view(batch, each))
        which = (scored, False) if some is None else (some.contiguous(), True)
        _launch_paint(key, biased, *table, each, scored, *terms, slots, gamma, sides, *which)
    return biased


def _launch_paint(key: DeviceKey, biased: Tensor, *arguments: Any) -> None:
    batch, each, size = biased.shape
    grid = (batch * each, triton.cdiv(size, PAINTED_AT_ONCE))
    try:
        _paint[grid](key.reveal(), biased, *arguments, PAINTED_AT_ONCE, **_EXACT)
    except Exception as error:
        raise error.with_traceback(None) from None  # the frames below hold the secret


def _dense(tensor: Tensor) -> Tensor:
    """Return the tensor with its last dimension contiguous, as it is where it can be."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@triton.jit
def _position(positions, positions_stride, number, each):
    """Return which text a program works on, and which position of it; -1 where it is empty."""
    text = number // each
    return text, tl.load(positions + text * positions_stride + number % each).to(tl.int64)


@triton.jit
def _row_of(rows, rows_stride, text, at, covered, listed: tl.constexpr):
    """Return which row of the logits belongs to a position, -1 where none does."""
    if listed:
        row = -1
        for start in range(0, covered, _SEARCHED_AT_ONCE):
            number = start + tl.arange(0, _SEARCHED_AT_ONCE)
            inside = number < covered
            position = tl.load(rows + text * rows_stride + number, mask=inside, other=-1)
            row = tl.maximum(row, tl.max(tl.where(inside & (position == at), number, -1), 0))
        found = tl.where(at >= 0, row, -1).to(tl.int64)
    else:
        found = tl.where((at >= 0) & (at < covered), at, -1)
    return found


@triton.jit
def _beside(at, side, length):
    """Return the position of a neighbour, -1 where there is none."""
    beside = at + 2 * side - 1
    return tl.where((at >= 0) & (beside < length), beside, -1)


@triton.jit
def _load_part(logits, text_stride, row_stride, size, text, row, part, block: tl.constexpr):
    """Return the ids of a part of the vocabulary, and a row's logits there."""
    ids = part * block + tl.arange(0, block)
    start = logits + text * text_stride + row * row_stride
    return ids, tl.load(start + ids, mask=ids < size, other=0).to(tl.float32)


@triton.jit
def _comparable(logit):
    """Return the logits as `standins.comparable` does."""
    logit = tl.where(logit == 0, 0.0, logit)
    return tl.where(logit != logit, float("inf"), logit)


@triton.jit
def _sortable(bits):
    """Return the bits of a float as an integer of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _entries(ids, logit):
    """Return one integer a token: by logit, and by lowest id among equals."""
    upper = _sortable(logit.to(tl.int32, bitcast=True)).to(tl.int64)
    return (upper << 32) | (0xFFFFFFFF - ids.to(tl.int64))


@triton.jit
def _logit_of(entry):
    return _sortable((entry >> 32).to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def _share(gap):
    """Return what `standins.shares` does."""
    exponent = ((tl.where(gap < _FARTHEST, gap, _FARTHEST) * _ONE).to(tl.int64) * 6196328019) >> 25
    f = exponent & 0x7FFFFFFF
    power = f * 0
    for number in tl.static_range(7):
        power = ((power * f) >> 31) + _POWER_OF_TWO[number]
    return (power << 13) >> (exponent >> 31)


@triton.jit(do_not_specialize=_VARYING)
def _rank(
    tokens, tokens_stride, revealed, revealed_stride, positions, positions_stride,
    rows, rows_stride, each, length, covered, logits, text_stride, row_stride, size,
    asked, ranked, parts, slots, listed: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write the largest entries of a part of an unrevealed neighbour's logits, in order."""
    number, part, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    line = number * tl.num_programs(2) + side
    text, at = _position(positions, positions_stride, number, each)
    at = _beside(at, side, length)
    known = tl.load(revealed + text * revealed_stride + at, mask=at >= 0, other=0) != 0
    row = tl.where(known, -1, _row_of(rows, rows_stride, text, at, covered, listed))
    if part == 0:
        tl.store(asked + line, row)
    if row >= 0:
        ids, logit = _load_part(logits, text_stride, row_stride, size, text, row, part, block)
        entry = tl.where(ids < size, _entries(ids, _comparable(logit)), _LOWEST)
        for slot in range(slots):
            best = tl.max(entry, 0)
            tl.store(ranked + (line * parts + part) * slots + slot, best)
            entry = tl.where(entry == best, _LOWEST, entry)


@triton.jit(do_not_specialize=_VARYING)
def _weigh(
    logits, text_stride, row_stride, size, each, asked, ranked, shares, parts,
    slots, part_block: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write the sum of e^(logit - largest) over a part of an unrevealed neighbour's logits."""
    number, part, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    line = number * tl.num_programs(2) + side
    row = tl.load(asked + line)
    if row >= 0:
        every = tl.arange(0, part_block)
        firsts = ranked + (line * parts + every) * slots
        largest = _logit_of(tl.max(tl.load(firsts, mask=every < parts, other=_LOWEST), 0))
        ids, logit = _load_part(
            logits, text_stride, row_stride, size, number // each, row, part, block
        )
        share = tl.where(ids < size, _share(largest - _comparable(logit)), 0)
        tl.store(shares + line * parts + part, tl.sum(share, 0))


@triton.jit
def _predicted(
    scored, ranked, shares, line, parts, slots, part_block: tl.constexpr,
    entry_block: tl.constexpr, ids, weights, delta, total, weighted: tl.constexpr,
):  # fmt: skip
    """Write the stand-ins that give a term; return how many, and the total with their weights."""
    every = tl.arange(0, entry_block)
    entries = ranked + line * parts * slots + every
    entry = tl.load(entries, mask=every < parts * slots, other=_LOWEST)
    largest = _logit_of(tl.max(entry, 0))
    part = tl.arange(0, part_block)
    whole = tl.sum(tl.load(shares + line * parts + part, mask=weighted & (part < parts), other=0))
    terms = 0
    for _ in range(slots):
        best = tl.max(entry, 0)
        entry = tl.where(entry == best, _LOWEST, entry)
        weight = delta
        if weighted:
            share = _share(largest - _logit_of(best)).to(tl.float32)
            weight = delta * tl.div_rn(share, whole.to(tl.float32))
        token = 0xFFFFFFFF - (best & 0xFFFFFFFF)
        counts = (weight > 0) & (tl.load(scored + token) != 0)
        tl.store(ids + line * slots + terms, token, mask=counts)
        tl.store(weights + line * slots + terms, weight, mask=counts)
        total += tl.where(counts, weight, 0.0)
        terms += counts.to(tl.int32)
    return terms, total


@triton.jit(do_not_specialize=_VARYING, debug=True)
def _settle(
    tokens, tokens_stride, revealed, revealed_stride, positions, positions_stride,
    rows, rows_stride, each, length, covered, size, scored, asked, ranked, shares, parts,
    slots, part_block: tl.constexpr, entry_block: tl.constexpr,
    chosen, ids, weights, live, totals, delta, listed: tl.constexpr,
    sides: tl.constexpr, predicted: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    """Write a position's row, and the tokens on each side that give a term, in order."""
    number = tl.program_id(0).to(tl.int64)
    text, at = _position(positions, positions_stride, number, each)
    row = _row_of(rows, rows_stride, text, at, covered, listed)
    tl.device_assert((row >= 0) | (at < 0), "a position to fill is not among the logits' rows")
    tl.store(chosen + number, tl.maximum(row, 0))
    total = 0.0
    for side in tl.static_range(sides):
        line = number * sides + side
        beside = _beside(at, side, length)
        here = beside >= 0
        token = tl.load(tokens + text * tokens_stride + beside, mask=here, other=0).to(tl.int64)
        known = tl.load(revealed + text * revealed_stride + beside, mask=here, other=0) != 0
        inside = (token >= 0) & (token < size)
        tl.device_assert((known == 0) | inside, "a token is not in the vocabulary")
        counts = tl.load(scored + token, mask=known & inside, other=0) != 0
        tl.store(ids + line * slots, token, mask=counts)
        tl.store(weights + line * slots, delta, mask=counts)
        total += tl.where(counts, delta, 0.0)
        terms = counts.to(tl.int32)
        if tl.load(asked + line, mask=predicted, other=-1) >= 0:
            terms, total = _predicted(
                scored, ranked, shares, line, parts, slots, part_block, entry_block,
                ids, weights, delta, total, weighted,
            )  # fmt: skip
        tl.store(live + line, terms)
    tl.store(totals + number, total)


@triton.jit(do_not_specialize=_VARYING)
def _paint(
    words, biased, logits, text_stride, row_stride, size, each, scored,
    chosen, ids, weights, live, totals,
    slots, gamma, sides: tl.constexpr, contenders, picky: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write a part of the biased logits of a position; without a contender there is no hashing."""
    number, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(chosen + number)
    vocabulary, logit = _load_part(
        logits, text_stride, row_stride, size, number // each, row, part, block
    )
    other = vocabulary.to(tl.uint64)
    v0, v1, v2, v3 = word(words, 0), word(words, 1), word(words, 2), word(words, 3)
    threshold = word(words, 4)
    contends = vocabulary < size
    if picky:
        contends = tl.load(contenders + number * size + vocabulary, mask=contends, other=0) != 0
    any_contends = tl.max(contends.to(tl.int32), 0)
    bias = tl.zeros((block,), tl.float32)
    for side in tl.static_range(sides):
        line = number * sides + side
        for term in range(tl.load(live + line) * any_contends):
            token = tl.load(ids + line * slots + term).to(tl.uint64)
            message = (token << 32) | other if side == 0 else (other << 32) | token
            green = contends & (siphash(v0, v1, v2, v3, message) < threshold)
            bias += tl.where(green, tl.load(weights + line * slots + term), 0.0)
    coloured = tl.load(scored + vocabulary, mask=vocabulary < size, other=0) != 0
    bias = tl.where(coloured, bias, gamma * tl.load(totals + number))
    result = (logit + bias).to(biased.dtype.element_ty)
    tl.store(biased + number * size + vocabulary, result, mask=vocabulary < size)
