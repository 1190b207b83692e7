"""What a sampler can be told: one frozen dataclass each, checked where it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dllmark.errors import DllmarkError

LladaOrder = Literal["low_confidence", "random", "left_to_right"]
DreamOrder = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]
Kept = Literal["none", "prefix", "block"]


@dataclass(frozen=True)
class Llada:
    """LLaDA's sampler: block after block, the same number of tokens in each step.

    `order` says which tokens of a block come first. `cfg_scale` strengthens the prompt by a second
    pass without it. `remask` masks that share of a block's tokens again before each step, at
    random, so that they are chosen anew. `top_p` draws only from the likeliest tokens, those that
    reach this probability together. `suppress_end` never ends a text early; `end_last` reveals the
    tokens that end it after all others of their block.

    `cache` is faster and approximate: within a block, "prefix" computes what stands before it only
    once, "block" also what stands after it.

    >>> Llada(steps=128, temperature=0.5).order
    'low_confidence'
    """

    steps: int = 64
    block_length: int = 32
    temperature: float = 0.0
    top_p: float = 1.0
    cfg_scale: float = 0.0
    order: LladaOrder = "low_confidence"
    remask: float = 0.0
    suppress_end: bool = False
    end_last: bool = False
    cache: Kept = "none"

    def __post_init__(self) -> None:
        _at_least(1, steps=self.steps, block_length=self.block_length)
        _at_least(0, temperature=self.temperature, cfg_scale=self.cfg_scale)
        _a_probability(top_p=self.top_p)
        _one_of("order", self.order, get_args(LladaOrder))
        _one_of("cache", self.cache, get_args(Kept))
        if self.cfg_scale and self.cache != "none":
            raise DllmarkError("cfg_scale needs a pass without the prompt: it works without cache")
        if not 0 <= self.remask < 1:
            raise DllmarkError(f"remask is a share of the tokens, in [0, 1); got {self.remask}")


@dataclass(frozen=True)
class Dream:
    """Dream's sampler: the whole text at once, along the schedule of its diffusion.

    `order` "origin" reveals at random places, the others the most certain tokens first: by
    probability, by its margin over the second best, or by entropy; `alg_temp` draws the places
    instead of taking the best. `top_p` and `top_k` keep only the likeliest tokens.

    >>> Dream(steps=128, order="entropy", temperature=0.2, top_p=0.95).eps
    0.001
    """

    steps: int = 64
    order: DreamOrder = "origin"
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    alg_temp: float | None = None
    eps: float = 1e-3
    suppress_end: bool = False

    def __post_init__(self) -> None:
        _at_least(1, steps=self.steps)
        _at_least(0, temperature=self.temperature)
        _one_of("order", self.order, get_args(DreamOrder))
        if self.top_k is not None:
            _at_least(1, top_k=self.top_k)
        if self.alg_temp is not None:
            _at_least(0, alg_temp=self.alg_temp)
        _a_probability(top_p=self.top_p)
        if not 0 < self.eps < 1:
            raise DllmarkError(f"eps is the time the schedule ends at, in (0, 1); got {self.eps}")


@dataclass(frozen=True)
class Parallel:
    """Confidence-threshold decoding: a step reveals all of the block that is certain enough.

    A token is certain enough when its probability is above `threshold`; the most certain one is
    revealed in any case. `top_p` and `cache` are as in `Llada`.

    >>> Parallel(threshold=0.95).block_length
    32
    """

    threshold: float = 0.9
    block_length: int = 32
    temperature: float = 0.0
    top_p: float = 1.0
    suppress_end: bool = False
    cache: Kept = "none"

    def __post_init__(self) -> None:
        _at_least(1, block_length=self.block_length)
        _at_least(0, temperature=self.temperature)
        _one_of("cache", self.cache, get_args(Kept))
        _a_probability(threshold=self.threshold, top_p=self.top_p)


Sampler = Llada | Dream | Parallel


def _at_least(least: int, **values: float) -> None:
    """Raise `DllmarkError` unless every value is a number from `least` up."""
    for name, value in values.items():
        if not least <= value < float("inf"):
            raise DllmarkError(f"{name} is at least {least}; got {value}")


def _a_probability(**values: float) -> None:
    """Raise `DllmarkError` unless every value is a probability above 0."""
    for name, value in values.items():
        if not 0 < value <= 1:
            raise DllmarkError(f"{name} is a probability, in (0, 1]; got {value}")


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    """Raise `DllmarkError` for an order or a cache the sampler does not have."""
    if value not in values:
        raise DllmarkError(f"no {name} {value!r}: choose one of {', '.join(values)}")
