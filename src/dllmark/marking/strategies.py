"""The strategies as data: which neighbours bias a token, how strongly, and the default one.

Nothing here needs torch: command lines and servers list strategies before any model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dllmark.errors import InputError


@dataclass(frozen=True)
class Strategy:
    """Which neighbours of a position bias its token, and how an unrevealed one is predicted.

    default_delta    the bias where no other is given: what suits one strategy is wrong for another
    backward         whether the right neighbour counts too
    prediction       an unrevealed neighbour gives no term, is the model's likeliest token, or
                     counts with its probabilities
    even_odd_passes  a sampler that fills several positions in one step decides the even ones first
                     and the odd ones after them, so that no two neighbours are decided at once
    biases_order     a sampler that fills the most certain positions first measures that on the
                     biased tokens: green ones come first, likely red ones wait for a neighbour (to
                     steer the order is the idea of dgMARK, Hong and No, arXiv 2601.22985)
    joint            position and token are weighed together, by the sampler's own distribution of
                     that choice: for samplers that have one (`dllmark.sampling.joint`)
    adaptive         δ counts in full until a text has the green pairs that it is to have, and less
                     and less beyond: each text is marked as strongly as it needs (`adaptive.py`)
    cooled           of a joint one: the model is on average as sure of what is written as without
                     the mark (`dllmark.sampling.cooling`)
    fresh            a token that would repeat a pair which stands in the text gets the mean bias,
                     as a special token does: a pair is counted once, and nothing is as certain as a
                     copy
    """

    name: str
    default_delta: float
    backward: bool
    prediction: Literal["none", "argmax", "expectation"]
    even_odd_passes: bool = False
    biases_order: bool = False
    joint: bool = False
    adaptive: bool = False
    cooled: bool = False
    fresh: bool = False


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("kgw", 2.0, backward=False, prediction="none"),
        Strategy("predictive", 2.0, backward=False, prediction="argmax"),
        Strategy("bidirectional", 2.0, backward=True, prediction="none"),
        Strategy("predictive-bidirectional", 2.0, backward=True, prediction="argmax"),
        Strategy(
            "expected-bidirectional",
            2.0,
            backward=True,
            prediction="expectation",
            even_odd_passes=True,
        ),
        Strategy(
            "fresh-bidirectional",
            2.0,
            backward=True,
            prediction="expectation",
            even_odd_passes=True,
            fresh=True,
        ),
        Strategy(
            "adaptive-bidirectional",
            3.0,
            backward=True,
            prediction="expectation",
            even_odd_passes=True,
            adaptive=True,
            fresh=True,
        ),
        Strategy(
            "guided-bidirectional",
            3.0,
            backward=True,
            prediction="expectation",
            even_odd_passes=True,
            biases_order=True,
        ),
        Strategy("joint", 3.6, backward=True, prediction="expectation", joint=True),
        Strategy(
            "adaptive-joint",
            5.4,
            backward=True,
            prediction="expectation",
            joint=True,
            adaptive=True,
        ),
        Strategy(
            "cooled-joint",
            10.8,
            backward=True,
            prediction="expectation",
            joint=True,
            adaptive=True,
            cooled=True,
        ),
    )
}
"""Every strategy by its name: the paper's four, then ours."""

JOINT_DEFAULT = STRATEGIES["cooled-joint"]
"""What marks where a sampler chooses position and token by a distribution that is known: LLaDA's in
its low-confidence order. docs/defaults.md says why."""

BIASES = tuple(
    name for name, strategy in STRATEGIES.items() if not (strategy.joint or strategy.adaptive)
)
"""Those that look at a position and its neighbours alone: a joint one chooses positions too, an
adaptive one looks at the whole text."""

ORDER_DEFAULT = STRATEGIES["adaptive-bidirectional"]
"""What marks in the other orders of LLaDA's sampler, and in Dream's; docs/defaults.md says why."""

DEFAULT = STRATEGIES["expected-bidirectional"]
"""What marks where nothing else is asked for and nothing is known of the sampler, or a payload is
to be read; docs/defaults.md says why."""

ENGINE_DEFAULT = STRATEGIES["fresh-bidirectional"]
"""What marks in an engine, which measures its confidence on biased logits; docs/defaults.md says
why."""

MAX_DELTA = 1000.0
"""No logit withstands it, and twice as much is still a number in every format."""


def find_strategy(name: str) -> Strategy:
    """Return the strategy of a name, or raise `InputError` if there is none.

    >>> find_strategy("kgw").default_delta
    2.0
    """
    if name not in STRATEGIES:
        raise InputError(f"no strategy {name!r}: choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def check_delta(delta: float) -> None:
    """Raise `InputError` unless logits can gain so much.

    >>> check_delta(3.0)
    """
    if not 0 <= delta <= MAX_DELTA:
        raise InputError(
            f"delta is added to the logits of green tokens, from 0 to {MAX_DELTA:g}; got {delta}"
        )
