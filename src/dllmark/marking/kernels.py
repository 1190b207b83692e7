"""The watermark's bias as two to four GPU kernels: the same bits as the torch path, no waiting.

    _top_k_entries  the likeliest tokens in each part of an unrevealed neighbour's logits
    _softmax_sums   each part's share of the softmax, where the likeliest are weighted by it
    _collect_terms  for each position and side the neighbours that give a term, and their weights
    _add_bias       a keyed hash for each token of the vocabulary; writes the biased logits

Nothing here waits for the GPU or copies to it, so a CUDA graph can hold the whole step. Sums have
one order and `enable_fp_fusion` is off, so that the bits are those of the torch path.

Kernels take their tensors in named tuples. Sizes that vary between steps stay out of these: Triton
would compile a kernel again for each special value of a number in a tuple.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dllmark.marking.kernel_hash import DeviceKey, siphash, word
from dllmark.marking.kernel_prediction import (
    comparable,
    entry_of,
    fixed_point_exp,
    logit_of,
    token_of,
)
from dllmark.marking.state import BiasSettings, State

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The logits that the kernels take."""

MAX_TOP_K = 64
"""The most tokens that predict one neighbour: each takes a round over its logits."""

RANKED_AT_ONCE, BIASED_AT_ONCE = 2048, 512
"""How much of the vocabulary one program of the kernels looks at."""

_SEARCHED_AT_ONCE = tl.constexpr(256)
_LOWEST = tl.constexpr(-(1 << 63))

_EXACT = {"enable_fp_fusion": False, "sanitize_overflow": False}
_VARYING = ["each", "length", "covered", "delta", "gamma"]
"""Numbers that vary between steps: kernels are not compiled again for special values of these."""


class Sequence(NamedTuple):
    """The texts: what stands where, which positions to fill, and which the logits cover."""

    tokens: Tensor
    revealed: Tensor
    positions: Tensor
    logit_positions: Tensor


class Logits(NamedTuple):
    """The logits, whose vocabulary is contiguous."""

    data: Tensor
    text_stride: int
    row_stride: int


class Prediction(NamedTuple):
    """What is predicted on each side of each position.

    logit_index  [N, sides]                where the neighbour's logits are; -1: it is not predicted
    entries      [N, sides, parts, slots]  the largest of each part, as `entry_of` writes them
    sums         [N, sides, parts]         the sum of the exponentials of each part
    """

    logit_index: Tensor
    entries: Tensor
    sums: Tensor


class Terms(NamedTuple):
    """What is added at each position.

    logit_index  [N]                where its logits are
    ids          [N, sides, slots]  the neighbours that give a term
    weights      [N, sides, slots]  how much a green pair with each adds
    counts       [N, sides]         how many there are
    totals       [N]                the sum of the weights
    """

    logit_index: Tensor
    ids: Tensor
    weights: Tensor
    counts: Tensor
    totals: Tensor


class Plan(NamedTuple):
    """What kernels are compiled for: the model, the strategy, and how the work is cut.

    slots   terms of a side: `top_k`, or one for a revealed neighbour
    parts   of the vocabulary, of `ranked` tokens each, of which `_add_bias` takes `biased`
    listed  whether `logit_positions` says which positions the logits cover
    """

    vocab_size: int
    sides: int
    top_k: int
    slots: int
    weighted: bool
    listed: bool
    parts: int
    parts_padded: int
    entries_padded: int
    ranked: int
    biased: int


def biased_logits(state: State, settings: BiasSettings, scored: Tensor, key: DeviceKey) -> Tensor:
    """Return what `bias.biased_logits` returns.

    >>> biased_logits(state, settings, scored, DeviceKey(key, "cuda"))  # doctest: +SKIP
    """
    (batch, each), covered = state.positions.shape, state.logits.shape[1]
    biased = state.logits.new_empty(batch, each, state.vocab_size)
    if biased.numel() == 0:
        return biased
    plan = _plan(state, settings)
    prediction, terms = _scratch(plan, batch * each, state.logits.device)
    listed = state.positions if state.logit_positions is None else state.logit_positions
    texts = (state.tokens, state.revealed, state.positions, listed)
    sequence = Sequence(*(tensor.contiguous() for tensor in texts))
    data = state.logits if state.logits.stride(-1) == 1 else state.logits.contiguous()
    logits = Logits(data, data.stride(0), data.stride(1))
    sizes = (each, state.length, covered)
    with torch.cuda.device_of(data):
        grid = (batch * each, plan.parts, plan.sides)
        if plan.top_k:
            _top_k_entries[grid](sequence, logits, prediction, *sizes, plan, **_EXACT)
        if plan.weighted:
            _softmax_sums[grid](logits, prediction, each, plan, **_EXACT)
        _collect_terms[grid[:1]](
            sequence, scored, prediction, terms, settings.delta, *sizes, plan, **_EXACT
        )
        reachable = state.reachable_tokens(terms.totals.view(batch, each))
        restricted = reachable is not None
        tokens = scored if reachable is None else reachable.contiguous()
        _launch_add_bias(
            key, biased, logits, scored, terms, tokens, settings.gamma, each, plan, restricted
        )
    return biased


def _plan(state: State, settings: BiasSettings) -> Plan:
    """Return how the work on a state is cut."""
    parts, slots = triton.cdiv(state.vocab_size, RANKED_AT_ONCE), max(settings.top_k, 1)
    return Plan(
        vocab_size=state.vocab_size,
        sides=settings.sides,
        top_k=settings.top_k,
        slots=slots,
        weighted=settings.weighted,
        listed=state.logit_positions is not None,
        parts=parts,
        parts_padded=triton.next_power_of_2(parts),
        entries_padded=triton.next_power_of_2(parts * slots),
        ranked=RANKED_AT_ONCE,
        biased=BIASED_AT_ONCE,
    )


def _scratch(plan: Plan, count: int, device: torch.device) -> tuple[Prediction, Terms]:
    """Return the tensors that the kernels hand to each other, for so many positions."""

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty((count, *shape), dtype=dtype, device=device)

    lists = (plan.sides, plan.slots)
    prediction = Prediction(
        logit_index=empty(plan.sides),
        entries=empty(plan.sides, plan.parts, plan.slots),
        sums=empty(plan.sides, plan.parts),
    )
    terms = Terms(
        logit_index=empty(),
        ids=empty(*lists),
        weights=empty(*lists, dtype=torch.float32),
        counts=empty(plan.sides, dtype=torch.int32),
        totals=empty(dtype=torch.float32),
    )
    return prediction, terms


def _launch_add_bias(key: DeviceKey, biased: Tensor, *arguments: Any) -> None:
    batch, each, size = biased.shape
    grid = (batch * each, triton.cdiv(size, BIASED_AT_ONCE))
    try:
        _add_bias[grid](key.reveal(), biased, *arguments, **_EXACT)
    except Exception as error:
        raise error.with_traceback(None) from None  # the frames below hold the secret


@triton.jit
def _logit_index(sequence, text, at, covered, plan: tl.constexpr):
    """Return where in the logits a position is, -1 where it is not."""
    if plan.listed:
        index = -1
        for start in range(0, covered, _SEARCHED_AT_ONCE):
            number = start + tl.arange(0, _SEARCHED_AT_ONCE)
            inside = number < covered
            listed = sequence.logit_positions + text * covered + number
            same = inside & (tl.load(listed, mask=inside, other=-1) == at)
            index = tl.maximum(index, tl.max(tl.where(same, number, -1), 0))
        result = tl.where(at >= 0, index, -1).to(tl.int64)
    else:
        result = tl.where((at >= 0) & (at < covered), at, -1)
    return result


@triton.jit
def _neighbour(at, side, length):
    """Return the position of a neighbour, -1 where there is none."""
    neighbour = at + 2 * side - 1
    return tl.where((at >= 0) & (neighbour < length), neighbour, -1)


@triton.jit
def _load_part(logits, text, index, part, block: tl.constexpr, plan: tl.constexpr):
    """Return the ids of a part of the vocabulary, and a position's logits there."""
    ids = part * block + tl.arange(0, block)
    start = logits.data + text * logits.text_stride + index * logits.row_stride
    return ids, tl.load(start + ids, mask=ids < plan.vocab_size, other=0).to(tl.float32)


@triton.jit(do_not_specialize=_VARYING)
def _top_k_entries(sequence, logits, prediction, each, length, covered, plan: tl.constexpr):
    """Write the largest entries of a part of an unrevealed neighbour's logits, in order."""
    number, part, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    line, text = number * plan.sides + side, number // each
    at = _neighbour(tl.load(sequence.positions + number).to(tl.int64), side, length)
    known = tl.load(sequence.revealed + text * length + at, mask=at >= 0, other=0) != 0
    index = tl.where(known, -1, _logit_index(sequence, text, at, covered, plan))
    if part == 0:
        tl.store(prediction.logit_index + line, index)
    if index >= 0:
        ids, logit = _load_part(logits, text, index, part, plan.ranked, plan)
        entry = tl.where(ids < plan.vocab_size, entry_of(ids, comparable(logit)), _LOWEST)
        entries = prediction.entries + (line * plan.parts + part) * plan.slots
        for slot in range(plan.slots):
            best = tl.max(entry, 0)
            tl.store(entries + slot, best)
            entry = tl.where(entry == best, _LOWEST, entry)


@triton.jit(do_not_specialize=_VARYING)
def _softmax_sums(logits, prediction, each, plan: tl.constexpr):
    """Write the sum of e^(logit - largest) over a part of an unrevealed neighbour's logits."""
    number, part, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    line = number * plan.sides + side
    index = tl.load(prediction.logit_index + line)
    if index >= 0:
        every = tl.arange(0, plan.parts_padded)
        firsts = prediction.entries + (line * plan.parts + every) * plan.slots
        largest = logit_of(tl.max(tl.load(firsts, mask=every < plan.parts, other=_LOWEST), 0))
        ids, logit = _load_part(logits, number // each, index, part, plan.ranked, plan)
        inside = ids < plan.vocab_size
        exponentials = tl.where(inside, fixed_point_exp(largest - comparable(logit)), 0)
        tl.store(prediction.sums + line * plan.parts + part, tl.sum(exponentials, 0))


@triton.jit
def _predicted_terms(scored, prediction, terms, line, delta, total, plan: tl.constexpr):
    """Write the predicted tokens that give a term; return how many, and the total with them."""
    every = tl.arange(0, plan.entries_padded)
    used = plan.parts * plan.slots
    entry = tl.load(prediction.entries + line * used + every, mask=every < used, other=_LOWEST)
    largest = logit_of(tl.max(entry, 0))
    part = tl.arange(0, plan.parts_padded)
    sums = prediction.sums + line * plan.parts + part
    whole = tl.sum(tl.load(sums, mask=plan.weighted & (part < plan.parts), other=0))
    count = 0
    for _ in range(plan.slots):
        best = tl.max(entry, 0)
        entry = tl.where(entry == best, _LOWEST, entry)
        weight = delta
        if plan.weighted:
            share = fixed_point_exp(largest - logit_of(best)).to(tl.float32)
            weight = delta * tl.div_rn(share, whole.to(tl.float32))
        token = token_of(best)
        counts = (weight > 0) & (tl.load(scored + token) != 0)
        tl.store(terms.ids + line * plan.slots + count, token, mask=counts)
        tl.store(terms.weights + line * plan.slots + count, weight, mask=counts)
        total += tl.where(counts, weight, 0.0)
        count += counts.to(tl.int32)
    return count, total


@triton.jit(do_not_specialize=_VARYING, debug=True)
def _collect_terms(
    sequence, scored, prediction, terms, delta, each, length, covered, plan: tl.constexpr
):
    """Write where a position's logits are, and the neighbours that give a term, in order."""
    number = tl.program_id(0).to(tl.int64)
    text, at = number // each, tl.load(sequence.positions + number).to(tl.int64)
    index = _logit_index(sequence, text, at, covered, plan)
    there = (at == -1) | ((index >= 0) & (at < length))
    tl.device_assert(there, "a position to fill is not among those of the logits")
    tl.store(terms.logit_index + number, tl.maximum(index, 0))
    total = 0.0
    sides: tl.constexpr = plan.sides
    for side in tl.static_range(sides):
        line = number * sides + side
        neighbour = _neighbour(at, side, length)
        here = neighbour >= 0
        place = text * length + neighbour
        token = tl.load(sequence.tokens + place, mask=here, other=0).to(tl.int64)
        known = tl.load(sequence.revealed + place, mask=here, other=0) != 0
        inside = (token >= 0) & (token < plan.vocab_size)
        tl.device_assert((known == 0) | inside, "a revealed token is outside the vocabulary")
        counts = tl.load(scored + token, mask=known & inside, other=0) != 0
        tl.store(terms.ids + line * plan.slots, token, mask=counts)
        tl.store(terms.weights + line * plan.slots, delta, mask=counts)
        total += tl.where(counts, delta, 0.0)
        count = counts.to(tl.int32)
        if tl.load(prediction.logit_index + line, mask=plan.top_k > 0, other=-1) >= 0:
            count, total = _predicted_terms(scored, prediction, terms, line, delta, total, plan)
        tl.store(terms.counts + line, count)
    tl.store(terms.totals + number, total)


@triton.jit(do_not_specialize=_VARYING)
def _add_bias(
    words, biased, logits, scored, terms, reachable, gamma, each, plan: tl.constexpr,
    restricted: tl.constexpr,
):  # fmt: skip
    """Write a part of a position's biased logits; only reachable tokens are worth a hash."""
    number, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = tl.load(terms.logit_index + number)
    vocabulary, logit = _load_part(logits, number // each, index, part, plan.biased, plan)
    other = vocabulary.to(tl.uint64)
    v0, v1, v2, v3 = word(words, 0), word(words, 1), word(words, 2), word(words, 3)
    threshold = word(words, 4)
    inside = vocabulary < plan.vocab_size
    place = number * plan.vocab_size + vocabulary
    matters = inside
    if restricted:
        matters = tl.load(reachable + place, mask=inside, other=0) != 0
    any_matters = tl.max(matters.to(tl.int32), 0)
    bias = tl.zeros_like(logit)
    sides: tl.constexpr = plan.sides
    for side in tl.static_range(sides):
        line = number * sides + side
        for term in range(tl.load(terms.counts + line) * any_matters):
            token = tl.load(terms.ids + line * plan.slots + term).to(tl.uint64)
            message = (token << 32) | other if side == 0 else (other << 32) | token
            green = matters & (siphash(v0, v1, v2, v3, message) < threshold)
            bias += tl.where(green, tl.load(terms.weights + line * plan.slots + term), 0.0)
    coloured = tl.load(scored + vocabulary, mask=inside, other=0) != 0
    bias = tl.where(coloured, bias, gamma * tl.load(terms.totals + number))
    tl.store(biased + place, (logit + bias).to(biased.dtype.element_ty), mask=inside)
