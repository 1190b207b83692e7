"""Every scheme that is compared: ours, and other people's, each with the settings of its paper.

A scheme says how it marks a step of a sampler and how it scores ids, and has a p-value for every
score: three things, and nothing else is needed to compare it. See docs/reproduce.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dllmark.errors import InputError
from dllmark.experiments.rivals import scores
from dllmark.experiments.rivals.alignment import aligned
from dllmark.experiments.rivals.scores import Scorer
from dllmark.marking.strategies import STRATEGIES, Strategy
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer

if TYPE_CHECKING:
    from dllmark.marking.watermark import Watermark
    from dllmark.sampling.loop import OtherMark

    MakeMark = Callable[[WatermarkKey, Tokenizer, float, float], Watermark | OtherMark]

MakeScorer = Callable[[WatermarkKey, Tokenizer], Scorer]


@dataclass(frozen=True)
class Scheme:
    """A watermark that can be compared.

    mark    from a key, a tokenizer, δ and the temperature to what `generate` marks with
    scores  what can be measured of ids, by name; the first decides
    delta   how strong it is where nothing else is said; 0 for a scheme without strength
    gamma   the share of green pairs or tokens
    order   the order it must be written in, if not the sampler's
    orders  the sampler's orders that it can be written in; all of them if none is named
    noise   whether it needs noise, which there is none of at temperature 0
    ours    whether it is one of this package's strategies
    """

    name: str
    mark: MakeMark
    scores: dict[str, MakeScorer] = field(
        default_factory=lambda: {"green pairs": scores.green_pairs}
    )
    delta: float = 2.0
    gamma: float = 0.5
    order: str = ""
    orders: tuple[str, ...] = ()
    noise: bool = False
    ours: bool = False


def find_scheme(name: str) -> Scheme:
    """Return the scheme of a name, or raise `InputError` if there is none.

    >>> find_scheme("unigram").delta
    2.0
    """
    if name not in SCHEMES:
        raise InputError(f"no scheme {name!r}: choose one of {', '.join(SCHEMES)}")
    return SCHEMES[name]


def _ours(strategy: Strategy) -> Scheme:
    return Scheme(
        strategy.name,
        _watermark(strategy.name),
        delta=strategy.default_delta,
        orders=("low_confidence",) if strategy.joint else (),
        ours=True,
    )


def _watermark(strategy: str) -> MakeMark:
    def mark(
        key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
    ) -> Watermark | OtherMark:
        from dllmark.marking.watermark import Watermark

        return Watermark(key, strategy, delta, tokenizer=tokenizer)

    return mark


def _in_engine(strategy: str) -> MakeMark:
    def mark(
        key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
    ) -> OtherMark:
        from dllmark.experiments.rivals.marks import InEngine
        from dllmark.marking.watermark import Watermark

        return InEngine(Watermark(key, strategy, delta, tokenizer=tokenizer))

    return mark


def _unigram(
    key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
) -> OtherMark:
    from dllmark.experiments.rivals.marks import Unigram

    return Unigram(key, tokenizer, delta)


def _left_right(
    key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
) -> OtherMark:
    from dllmark.experiments.rivals.marks import LeftRight

    return LeftRight(key, tokenizer, delta)


def _gloaguen(
    key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
) -> Watermark:
    from dllmark.experiments.rivals.marks import Gloaguen

    return Gloaguen(key, tokenizer, delta, temperature)


def _dgmark(candidates: int) -> MakeMark:
    def mark(
        key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
    ) -> OtherMark:
        from dllmark.experiments.rivals.marks import DgMark

        return DgMark(key, tokenizer, candidates)

    return mark


def _order(name: str) -> MakeMark:
    def mark(
        key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
    ) -> Watermark:
        from dllmark.experiments.rivals import order

        kind: type[order.JointOrder] = getattr(order, name)
        return kind(key, tokenizer, delta, temperature)

    return mark


def _expecting(strategy: str) -> MakeMark:
    def mark(
        key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
    ) -> Watermark:
        from dllmark.experiments.rivals.aim import Expecting

        return Expecting(key, tokenizer, strategy, delta)

    return mark


def _fresh(key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float) -> OtherMark:
    from dllmark.experiments.rivals.expected import Biased

    return Biased(key, tokenizer, delta, temperature, fresh=True)


def _guided_fresh(
    key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
) -> Watermark:
    from dllmark.experiments.rivals.expected import GuidedFresh

    return GuidedFresh(key, tokenizer, delta)


def _unbiased(name: str) -> MakeMark:
    def mark(
        key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float
    ) -> OtherMark:
        from dllmark.experiments.rivals.expected import Sta1, Unbiased

        _require_noise(name, temperature)
        kind = Sta1 if name == "sta-1" else Unbiased
        return kind(key, tokenizer, delta, temperature, fresh=name == "unbiased-fresh")

    return mark


def _gumbel(key: WatermarkKey, tokenizer: Tokenizer, delta: float, temperature: float) -> OtherMark:
    from dllmark.experiments.rivals.marks import Gumbel

    _require_noise("gumbel", temperature)
    return Gumbel(key, tokenizer)


def _require_noise(name: str, temperature: float) -> None:
    if temperature == 0:
        raise InputError(f"{name} needs the noise of a sampler: write at a temperature above 0")


PARITY: dict[str, MakeScorer] = {"parity": scores.parity, "windows of 8": scores.windows}

NOISE: dict[str, MakeScorer] = {"exponentials": scores.position_exponentials, "aligned": aligned}

SCHEMES = {
    scheme.name: scheme
    for scheme in (
        *map(_ours, STRATEGIES.values()),
        Scheme("joint-order", _order("JointOrder"), delta=3.6, orders=("low_confidence",)),
        Scheme("adaptive-joint-ordered", _order("Ordered"), delta=5.4, orders=("low_confidence",)),
        *(
            Scheme(f"{name}-expecting", _expecting(name), delta=delta, orders=("low_confidence",))
            for name, delta in (("adaptive-joint", 5.4), ("cooled-joint", 10.8))
        ),
        Scheme(
            "cooled-joint-left-to-right",
            _watermark("cooled-joint"),
            delta=10.8,
            order="left_to_right",
        ),
        Scheme("engine-predictive", _in_engine("predictive-bidirectional")),
        Scheme("engine-expected", _in_engine("expected-bidirectional")),
        Scheme("engine-fresh", _in_engine("fresh-bidirectional")),
        Scheme("engine-adaptive", _in_engine("adaptive-bidirectional"), delta=3.0),
        Scheme("unigram", _unigram, {"green tokens": scores.unigram}),
        Scheme("kgw-left-to-right", _watermark("kgw"), order="left_to_right"),
        Scheme("gloaguen", _gloaguen, delta=4.0, gamma=0.25),
        Scheme("lr-dwm", _left_right, {"left and right": scores.left_and_right}),
        Scheme("dgmark", _dgmark(1), PARITY, delta=0.0),
        Scheme("dgmark-look-ahead", _dgmark(3), PARITY, delta=0.0),
        Scheme("sta-1", _unbiased("sta-1"), delta=0.0, noise=True),
        Scheme("unbiased", _unbiased("unbiased"), delta=0.0, noise=True),
        Scheme("expected-fresh", _fresh),
        Scheme("guided-fresh", _guided_fresh, delta=3.0),
        Scheme("unbiased-fresh", _unbiased("unbiased-fresh"), delta=0.0, noise=True),
        Scheme("gumbel", _gumbel, NOISE, delta=0.0, noise=True),
    )
}
"""Every scheme by its name: ours, then the others."""
