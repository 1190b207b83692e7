"""What a sampler can be told, and its defaults: a frozen dataclass each, checked where it is made.

Nothing here needs torch: command lines and servers tell the defaults before any model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from dllmark.errors import DllmarkError, InputError
from dllmark.marking.strategies import (
    DEFAULT,
    JOINT_DEFAULT,
    ORDER_DEFAULT,
    Strategy,
    find_strategy,
)

LladaOrder = Literal["low_confidence", "random", "left_to_right"]
DreamOrder = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]
CacheMode = Literal["none", "prefix", "block", "window"]

TOKENS = 128
BLOCK_LENGTH, EMBEDDED_BLOCK_LENGTH = 32, 16
TEMPERATURE = 0.8
"""What is written where nothing else is said, behind every door. At temperature 0 a small model
soon repeats itself."""

DREAM_TOP_K = 50
"""What `transformers` generates with by default, and Dream's code inherits from it."""

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-4, 100.0
"""Below the first, float32 has no digits left for the noise beside the logits, and they overflow in
the end; above the second every token is as likely as any other."""

MAX_GUIDANCE = 100.0
"""The largest `cfg_scale`; no logit withstands it, and the sum is still a number."""


@dataclass(frozen=True)
class Llada:
    """LLaDA's sampler: block after block, the same number of tokens in each step.

    `steps` is how many a whole text takes: half as many as it has tokens, where it is None. A last
    block that is shorter gets fewer of them. `order` says which tokens of a block
    come first. `cfg_scale` strengthens the prompt by a second pass without it. `remask` masks that
    share of a block's tokens again before each step, at random, so that they are chosen anew.
    `top_p` draws only from the likeliest tokens, until their probabilities add up to this.
    `suppress_end` never ends a text early: it bans all end tokens, where LLaDA's `logits_eos_inf`
    leaves `<|eot_id|>`. `end_last` reveals the tokens that end a text after all others of their
    block.

    `apart` leaves a place between the tokens that one step writes, as long as there is one: two
    neighbours are drawn without knowledge of each other, and often do not fit together.

    `cache` is faster and approximate: within a block, "prefix" computes what stands before it only
    once, "block" also what stands after it. Each block begins with a step that computes everything;
    with "window" only the first does, and a later one begins with itself and the block before it.

    `no_repeat_ngram`, which all samplers have, never writes a run of so many tokens that the text
    has already, nor a word twice in a row; 0 allows both. The prompt may be repeated, and a word
    that is begun be finished.
    Where a step writes several tokens, what they repeat only together is not seen.

    >>> Llada(steps=128, temperature=0.5).order
    'low_confidence'
    """

    steps: int | None = None
    block_length: int = BLOCK_LENGTH
    temperature: float = TEMPERATURE
    top_p: float = 1.0
    cfg_scale: float = 0.0
    order: LladaOrder = "low_confidence"
    remask: float = 0.0
    suppress_end: bool = False
    end_last: bool = False
    cache: CacheMode = "none"
    apart: bool = False
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        _at_least(1, block_length=self.block_length)
        _a_size(self.no_repeat_ngram)
        if self.steps is not None:
            _at_least(1, steps=self.steps)
        check_temperature(self.temperature)
        _a_probability(top_p=self.top_p)
        _one_of("order", self.order, get_args(LladaOrder))
        if self.apart and not takes_apart(self.order, self.end_last):
            raise DllmarkError("apart breaks the order of left_to_right and end_last: leave it out")
        _one_of("cache", self.cache, get_args(CacheMode))
        if not 0 <= self.cfg_scale <= MAX_GUIDANCE:
            raise InputError(f"cfg_scale is from 0 to {MAX_GUIDANCE:g}; got {self.cfg_scale}")
        if self.cfg_scale and self.cache != "none":
            raise DllmarkError("cfg_scale does not work with a cache: leave out one of them")
        if not 0 <= self.remask < 1:
            raise DllmarkError(f"remask is a share of the tokens, in [0, 1); got {self.remask}")


@dataclass(frozen=True)
class Dream:
    """Dream's sampler: the whole text at once, along the schedule of its diffusion.

    `order` "origin" reveals at random places, the others the most certain tokens first: by
    probability, by its margin over the second best, or by entropy; `alg_temp` draws the places
    instead of taking the best. `top_p` and `top_k` keep only the likeliest tokens: 50, as Dream's
    own `diffusion_generate` does where it is not told otherwise; None keeps all. `steps` is as in
    `Llada`.

    >>> Dream(steps=128, temperature=0.2, top_p=0.95).order
    'entropy'
    """

    steps: int | None = None
    order: DreamOrder = "entropy"
    temperature: float = TEMPERATURE
    top_p: float = 1.0
    top_k: int | None = DREAM_TOP_K
    alg_temp: float | None = None
    eps: float = 1e-3
    suppress_end: bool = False
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        _a_size(self.no_repeat_ngram)
        if self.steps is not None:
            _at_least(1, steps=self.steps)
        check_temperature(self.temperature)
        _one_of("order", self.order, get_args(DreamOrder))
        if self.top_k is not None:
            _at_least(1, top_k=self.top_k)
        if self.alg_temp is not None:
            check_temperature(self.alg_temp, "alg_temp")
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
    block_length: int = BLOCK_LENGTH
    temperature: float = TEMPERATURE
    top_p: float = 1.0
    suppress_end: bool = False
    cache: CacheMode = "none"
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        _at_least(1, block_length=self.block_length)
        _a_size(self.no_repeat_ngram)
        check_temperature(self.temperature)
        _one_of("cache", self.cache, get_args(CacheMode))
        _a_probability(threshold=self.threshold, top_p=self.top_p)


@dataclass(frozen=True)
class Llada2:
    """LLaDA2's sampler, and SDAR's: block after block, no block sees a later one.

    Blocks count from the beginning of the prompt. A step reveals what is more certain than
    `threshold`, as `Parallel` does, and with an `edit_threshold` (LLaDA2.1) also replaces tokens of
    the block where it would now write another one, more certain than that: also after all masks are
    gone, until nothing changes or `edit_steps` are over. A text ends with the block that ends it.

    Certainty is measured after temperature, `top_k` and `top_p`. The threshold by default is that
    of LLaDA2.0; with LLaDA2.1 one takes 0.7, and 0.5 as `edit_threshold`, with SDAR 0.85, and a
    `block_length` of 4.

    >>> Llada2(threshold=0.7, edit_threshold=0.5).block_length
    32
    """

    threshold: float = 0.95
    edit_threshold: float | None = None
    edit_steps: int = 16
    block_length: int = BLOCK_LENGTH
    temperature: float = TEMPERATURE
    top_p: float = 1.0
    top_k: int | None = None
    suppress_end: bool = False
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        _at_least(1, block_length=self.block_length)
        _a_size(self.no_repeat_ngram)
        _at_least(0, edit_steps=self.edit_steps)
        check_temperature(self.temperature)
        _a_probability(threshold=self.threshold, top_p=self.top_p)
        if self.edit_threshold is not None:
            _a_probability(edit_threshold=self.edit_threshold)
        if self.top_k is not None:
            _at_least(1, top_k=self.top_k)


Sampler = Llada | Dream | Parallel | Llada2


def check_temperature(temperature: float, name: str = "temperature") -> None:
    """Raise `InputError` unless logits can be divided by the temperature, or it is 0.

    >>> check_temperature(0.8)
    """
    if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise InputError(
            f"{name} is 0, which takes the likeliest, or from {MIN_TEMPERATURE:g} to "
            f"{MAX_TEMPERATURE:g}; got {temperature}"
        )


def default_cache(model: str) -> CacheMode:
    """Return the cache that the commands write with where none is asked for, by a model's name.

    The embedded model gets one, so that two cores write a text in seconds. A sampler made in code
    has none of its own accord, and is exact.

    >>> default_cache("embedded"), default_cache("GSAI-ML/LLaDA-8B-Instruct")
    ('window', 'none')
    """
    return "window" if model == "embedded" else "none"


def default_no_repeat(model: str) -> int:
    """Return how long a run of tokens the commands let no text repeat, by a model's name.

    The embedded model is small enough to go round in circles: docs/models.md says how often.

    >>> default_no_repeat("embedded"), default_no_repeat("GSAI-ML/LLaDA-8B-Instruct")
    (5, 0)
    """
    return 5 if model == "embedded" else 0


def default_llada(model: str, tokens: int, **settings: Any) -> Llada:
    """Return LLaDA's sampler as the commands write with it, by a model's name; settings given win.

    A setting of None counts as not given.

    The embedded model writes one token a step in blocks of 16, or several in blocks of 32, where
    there are more places to choose from. Several are kept apart, which LLaDA's own sampler does not
    do: docs/models.md says what both are worth.

    >>> written = default_llada("embedded", 128)
    >>> written == Llada(128, 16, cache="window", apart=True, no_repeat_ngram=5)
    True
    >>> default_llada("embedded", 128, steps=64).block_length
    32
    >>> default_llada("GSAI-ML/LLaDA-8B-Instruct", 128) == Llada(apart=True)
    True
    """
    settings = {name: value for name, value in settings.items() if value is not None}
    free = takes_apart(settings.get("order", ""), settings.get("end_last", False))
    settings.setdefault("apart", free)
    settings.setdefault("no_repeat_ngram", default_no_repeat(model))
    if model == "embedded" and settings.setdefault("steps", tokens) >= tokens:
        settings.setdefault("block_length", EMBEDDED_BLOCK_LENGTH)
    if not settings.get("cfg_scale"):
        settings.setdefault("cache", default_cache(model))
    return Llada(**settings)


def takes_apart(order: str, end_last: bool = False) -> bool:
    """Return whether LLaDA's sampler can keep the tokens of a step apart: no order is broken by it.

    >>> takes_apart("random"), takes_apart("left_to_right")
    (True, False)
    """
    return order != "left_to_right" and not end_last


def takes_joint(sampler: Sampler) -> bool:
    """Return whether `joint` can mark: there is a distribution of position and token to weigh.

    From left to right the position is given, and that of its tokens is weighed.

    >>> [takes_joint(Llada(order=order)) for order in get_args(LladaOrder)], takes_joint(Dream())
    ([True, False, True], False)
    """
    return isinstance(sampler, Llada) and sampler.order != "random" and not sampler.end_last


def choose_strategy(name: str | None, sampler: Sampler, *, payload: bool = False) -> Strategy:
    """Return the strategy of a name, if it can mark what the sampler writes, or the default one.

    >>> choose_strategy(None, Llada()).name, choose_strategy("kgw", Llada()).name
    ('cooled-joint', 'kgw')
    """
    strategy = default_strategy(sampler, payload=payload) if name is None else find_strategy(name)
    check_strategy(strategy, sampler)
    return strategy


def check_strategy(strategy: Strategy, sampler: Sampler) -> None:
    """Raise `InputError` unless a strategy can mark what the sampler writes.

    >>> check_strategy(find_strategy("joint"), Llada())
    """
    if strategy.joint and not takes_joint(sampler):
        raise InputError(
            f"{strategy.name} is for LLaDA's sampler, in its low_confidence or left_to_right order "
            "and without end_last: choose another strategy, for instance "
            f"{default_strategy(sampler).name}"
        )


def default_strategy(sampler: Sampler, *, payload: bool = False) -> Strategy:
    """Return what marks where no strategy is named; docs/defaults.md says why.

    With a payload one key of thousands is to stand out, so the mark is one that goes on where the
    other has enough.

    >>> default_strategy(Llada()).name, default_strategy(Dream()).name
    ('cooled-joint', 'adaptive-bidirectional')
    """
    if isinstance(sampler, Llada) and sampler.order == "low_confidence" and takes_joint(sampler):
        return find_strategy("joint") if payload else JOINT_DEFAULT
    return ORDER_DEFAULT if isinstance(sampler, Llada | Dream) and not payload else DEFAULT


def steps_for(sampler: Llada | Dream, tokens: int) -> int:
    """Return in how many steps a text is written: the sampler's own, else two tokens a step.

    A small model falls apart at four tokens a step. A block takes a step at least.

    >>> steps_for(Llada(), 200), steps_for(Llada(block_length=1), 9), steps_for(Llada(steps=7), 200)
    (100, 9, 7)
    """
    if sampler.steps is not None:
        return sampler.steps
    return max(tokens // 2, _block_count(sampler, tokens))


def check_length(sampler: Sampler, tokens: int) -> None:
    """Raise `DllmarkError` unless the sampler can write this many tokens.

    >>> check_length(Llada(steps=4, block_length=32), tokens=100)
    """
    if tokens < 1:
        raise DllmarkError(f"tokens is how many to write, at least 1; got {tokens}")
    if isinstance(sampler, Llada) and steps_for(sampler, tokens) < _block_count(sampler, tokens):
        raise DllmarkError(
            f"each block needs a step: {tokens} tokens in blocks of {sampler.block_length} take at "
            f"least {_block_count(sampler, tokens)} steps, not {sampler.steps}"
        )


def _block_count(sampler: Llada | Dream, tokens: int) -> int:
    return -(-tokens // sampler.block_length) if isinstance(sampler, Llada) else 1


def _at_least(least: int, **values: int) -> None:
    """Raise `DllmarkError` unless every value is a number from `least` up."""
    for name, value in values.items():
        if not least <= value < float("inf"):
            raise DllmarkError(f"{name} is at least {least}; got {value}")


def _a_probability(**values: float) -> None:
    """Raise `DllmarkError` unless every value is a probability above 0."""
    for name, value in values.items():
        if not 0 < value <= 1:
            raise DllmarkError(f"{name} is a probability, in (0, 1]; got {value}")


def _a_size(no_repeat_ngram: int) -> None:
    """Raise `InputError` for a single token, which no text can do without, and below 0."""
    if no_repeat_ngram != 0 and not no_repeat_ngram >= 2:
        raise InputError(
            f"no_repeat_ngram is 0, which allows repetition, or at least 2; got {no_repeat_ngram}"
        )


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    """Raise `DllmarkError` for an order or a cache the sampler does not have."""
    if value not in values:
        raise DllmarkError(f"no {name} {value!r}: choose one of {', '.join(values)}")
