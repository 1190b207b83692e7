"""What an experiment writes: under which settings, how much, and for which prompts."""

from __future__ import annotations

from dataclasses import dataclass

from dllmark.detection.detector import Scoring
from dllmark.errors import InputError
from dllmark.experiments.paper import DELTA
from dllmark.marking.strategies import check_delta
from dllmark.sampling.settings import CacheMode

RATES = (0.005, 0.01, 0.05)
"""The false-positive rates of the paper's tables."""

SCORINGS: tuple[Scoring, ...] = ("unique", "all")
"""Every distinct pair once, as `detect` does, and every pair, as the paper does."""


@dataclass(frozen=True)
class Setting:
    """How texts are written; a strategy of None leaves them unmarked.

    The strategy is one of ours or another scheme of `rivals`. `order` is that of the sampler, the
    model's own if none is given; `key` is which of a folder's keys marks, and which of the
    sampler's draws it marks.

    >>> Setting("kgw", delta=1.0).name
    'kgw, γ 0.5, δ 1, temperature 0, 1 a step'
    """

    strategy: str | None
    gamma: float = 0.5
    delta: float = DELTA
    temperature: float = 0.0
    per_step: int = 1
    order: str = ""
    key: int = 0

    @property
    def unmarked(self) -> Setting:
        """The same draw without a watermark; where nothing is drawn there is only one."""
        drawn = self.temperature > 0 or self.order == "random"
        return Setting(None, temperature=self.temperature, per_step=self.per_step,
                       order=self.order, key=self.key if drawn else 0)  # fmt: skip

    @property
    def name(self) -> str:
        """What it is called in reports."""
        mark = (
            f"{self.strategy}, γ {self.gamma:g}, δ {self.delta:g}" if self.strategy else "unmarked"
        )
        written = f"{mark}, temperature {self.temperature:g}, {self.per_step} a step"
        order = f", {self.order.replace('_', ' ')}" if self.order else ""
        which = "key" if self.strategy else "draw"
        return written + order + (f", {which} {self.key}" if self.key else "")

    @property
    def slug(self) -> str:
        """What its files are called."""
        mark = f"{self.strategy}-g{self.gamma:g}-d{self.delta:g}" if self.strategy else "unmarked"
        written = f"{mark}-t{self.temperature:g}-p{self.per_step}"
        order = f"-{self.order}" if self.order else ""
        return written + order + (f"-k{self.key}" if self.key else "")


@dataclass(frozen=True)
class Protocol:
    """How much is written and scored; the defaults are the paper's.

    A text with fewer than `scored` tokens is left out: with `suppress_end` there is none. So is a
    prompt whose unmarked text repeats more than the share `most_repeats` of its bigrams. `delta` is
    how strong marks are where an experiment does not vary it, `cache` and `apart` are those of
    LLaDA's sampler, `no_repeat_ngram` that of any.
    """

    samples: int = 500
    tokens: int = 256
    scored: int = 200
    block: int = 32
    most_repeats: float = 0.5
    suppress_end: bool = False
    delta: float = DELTA
    cache: CacheMode = "none"
    apart: bool = False
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"an experiment needs at least 1 sample; got {self.samples}")
        if not 2 <= self.scored <= self.tokens:
            raise InputError(
                f"{self.scored} tokens cannot be scored of texts of {self.tokens}: score fewer"
            )
        if self.block < 1:
            raise InputError(f"a block has at least 1 token; got {self.block}")
        check_delta(self.delta)


@dataclass(frozen=True)
class Dataset:
    """Prompts of one kind, and what people wrote there."""

    name: str
    prompts: list[str]
    truths: list[str]
    chat: bool
