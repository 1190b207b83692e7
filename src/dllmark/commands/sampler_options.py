"""The options of `dllmark generate` that are a sampler's, and the sampler that has them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any, Literal

import typer

from dllmark.errors import InputError
from dllmark.sampling.settings import (
    BLOCK_LENGTH,
    DREAM_TOP_K,
    EMBEDDED_BLOCK_LENGTH,
    Dream,
    Llada,
    Llada2,
    Parallel,
    Sampler,
    default_cache,
    default_llada,
    default_no_repeat,
    steps_for,
)

StepsOption = Annotated[
    int | None,
    typer.Option(
        help="In how many steps a text is written (llada, dream).",
        show_default="half as many as tokens; for the embedded model as many",
    ),
]
BlockOption = Annotated[
    int | None,
    typer.Option(
        help="The length of a block (llada, parallel, llada2).",
        show_default=f"{BLOCK_LENGTH}; {EMBEDDED_BLOCK_LENGTH} for the embedded model (llada)",
    ),
]
TemperatureOption = Annotated[
    float, typer.Option(help="How much is left to chance: 0 always takes the likeliest token.")
]
TopPOption = Annotated[
    float,
    typer.Option(
        help="Draw from the likeliest tokens only, until their probabilities add up to this."
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        help="Draw from this many of the likeliest tokens only; 0: from all (dream, llada2).",
        show_default=f"{DREAM_TOP_K} for dream",
    ),
]
CfgScaleOption = Annotated[
    float | None,
    typer.Option(help="Follow the prompt more closely, at the price of a second pass (llada)."),
]
SamplerOption = Annotated[
    Literal["llada", "dream", "parallel", "llada2"],
    typer.Option(
        metavar="<name>",
        help="The way to fill masks: llada, dream, parallel or llada2. LLaDA2 and SDAR models need "
        "llada2.",
    ),
]
OrderOption = Annotated[
    str | None,
    typer.Option(
        help="Which tokens to write first: low_confidence, random or left_to_right (llada); "
        "origin, maskgit_plus, topk_margin or entropy (dream). "
        f"Without it, {Llada.order} or {Dream.order}."
    ),
]
CacheOption = Annotated[
    str | None,
    typer.Option(
        help="Faster, but approximate: compute only in the first step of a block what stands "
        "before it (prefix), all outside it (block), or of that just the block before it (window); "
        "none is exact (llada, parallel).",
        show_default="window for the embedded model, none for others",
    ),
]
NoApartOption = Annotated[
    bool,
    typer.Option(
        "--no-apart", help="Let a step write neighbours, as LLaDA's own sampler does (llada)."
    ),
]
ThresholdOption = Annotated[
    float | None,
    typer.Option(
        help="Write all tokens in one step that are more probable than this (parallel, llada2).",
        show_default=f"{Parallel.threshold} or {Llada2.threshold}",
    ),
]
EditThresholdOption = Annotated[
    float | None,
    typer.Option(
        help="Replace a written token where another one is more probable than this (llada2)."
    ),
]
NO_REPEAT = "Never write a run of this many tokens twice in a text; 0 allows it."
NoRepeatOption = Annotated[
    int | None, typer.Option(help=NO_REPEAT, show_default="5 for the embedded model, else 0")
]
SuppressEndOption = Annotated[
    bool,
    typer.Option("--suppress-end", help="Write all the tokens: do not let a text end earlier."),
]

SAMPLERS: dict[str, type[Sampler]] = {
    "llada": Llada, "dream": Dream, "parallel": Parallel, "llada2": Llada2
}  # fmt: skip

FIELDS = {"block": "block_length", "no-apart": "apart"}
"""The samplers' words for options, where they are not the same."""


def make_sampler(name: str, tokens: int, options: dict[str, Any], model: str) -> Sampler:
    """Return a sampler with the options that are not None; one that it lacks is refused.

    The steps, where none are given, follow from the tokens to write; they, the block, the cache and
    what may be repeated also from the model.

    >>> made = make_sampler("llada", 256, {"steps": None, "cache": None}, "embedded")
    >>> made.steps, made.cache
    (256, 'window')
    """
    kind = SAMPLERS[name]
    known = {entry.name for entry in fields(kind)}
    settings: dict[str, Any] = {}
    for option, value in options.items():
        field = FIELDS.get(option, option.replace("-", "_"))
        if value is not None and field not in known:
            others = [other for other in SAMPLERS if hasattr(SAMPLERS[other], field)]
            raise InputError(
                f"the {name} sampler does not take --{option}: leave it out, or choose --sampler "
                f"{' or '.join(others)}"
            )
        if value is not None:
            settings[field] = value
    if settings.get("top_k") == 0:
        settings["top_k"] = None
    if kind is Llada:
        made: Sampler = default_llada(model, tokens, **settings)
    else:
        settings.setdefault("no_repeat_ngram", default_no_repeat(model))
        if kind is Parallel:
            settings.setdefault("cache", default_cache(model))
        made = kind(**settings)
    return replace(made, steps=steps_for(made, tokens)) if isinstance(made, Llada | Dream) else made
