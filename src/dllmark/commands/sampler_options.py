"""From the options of `dllmark generate` to a sampler that has them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dllmark.errors import InputError
from dllmark.sampling.settings import Dream, Llada, Llada2, Parallel, Sampler, default_steps

SAMPLERS: dict[str, type[Sampler]] = {
    "llada": Llada, "dream": Dream, "parallel": Parallel, "llada2": Llada2
}  # fmt: skip


def make_sampler(name: str, tokens: int, options: dict[str, Any]) -> Sampler:
    """Return a sampler with the options that are not None; one that it lacks is refused.

    The steps, where none are given, follow from the tokens to write.

    >>> make_sampler("llada", 256, {"cfg-scale": 1.5, "steps": None}).steps
    128
    """
    kind = SAMPLERS[name]
    known = {entry.name for entry in fields(kind)}
    settings: dict[str, Any] = {"steps": default_steps(tokens)} if "steps" in known else {}
    for option, value in options.items():
        field = "block_length" if option == "block" else option.replace("-", "_")
        if value is not None and field not in known:
            others = [other for other in SAMPLERS if hasattr(SAMPLERS[other], field)]
            raise InputError(
                f"the {name} sampler has no --{option}: use it with {' or '.join(others)}"
            )
        if value is not None:
            settings[field] = value
    if settings.get("top_k") == 0:
        settings["top_k"] = None
    return kind(**settings)
