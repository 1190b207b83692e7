"""`prediction.py` in a GPU kernel: logits in order, and exponentials as the same integers."""

import triton
import triton.language as tl

from dllmark.marking.prediction import (
    EXPONENT_SHIFT,
    FARTHEST,
    FRACTION,
    FRACTION_BITS,
    GAP_BITS,
    LOG2_E,
    POWER_OF_TWO,
    POWER_SHIFT,
)

_FARTHEST, _GAP_ONE = tl.constexpr(FARTHEST), tl.constexpr(float(1 << GAP_BITS))
_LOG2_E, _EXPONENT_SHIFT = tl.constexpr(LOG2_E), tl.constexpr(EXPONENT_SHIFT)
_FRACTION, _FRACTION_BITS = tl.constexpr(FRACTION), tl.constexpr(FRACTION_BITS)
_POWER_OF_TWO, _POWER_SHIFT = tl.constexpr(POWER_OF_TWO), tl.constexpr(POWER_SHIFT)


@triton.jit
def comparable(logit):
    """Return what `prediction.comparable` does."""
    logit = tl.where(logit == 0, 0.0, logit)
    return tl.where(logit != logit, float("inf"), logit)


@triton.jit
def _sortable(bits):
    """Return the bits of a float as an integer of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def entry_of(ids, logit):
    """Return one integer a token: by logit, and by lowest id among equals."""
    upper = _sortable(logit.to(tl.int32, bitcast=True)).to(tl.int64)
    return (upper << 32) | (0xFFFFFFFF - ids.to(tl.int64))


@triton.jit
def logit_of(entry):
    """Return the logit of an entry."""
    return _sortable((entry >> 32).to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def token_of(entry):
    """Return the token of an entry."""
    return 0xFFFFFFFF - (entry & 0xFFFFFFFF)


@triton.jit
def fixed_point_exp(gap):
    """Return what `prediction.fixed_point_exp` does."""
    near = (tl.where(gap < _FARTHEST, gap, _FARTHEST) * _GAP_ONE).to(tl.int64)
    exponent = (near * _LOG2_E) >> _EXPONENT_SHIFT
    f = exponent & _FRACTION
    power = f * 0
    for number in tl.static_range(7):
        power = ((power * f) >> _FRACTION_BITS) + _POWER_OF_TWO[number]
    return (power << _POWER_SHIFT) >> (exponent >> _FRACTION_BITS)
