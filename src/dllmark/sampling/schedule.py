"""Where each step may reveal tokens, and how many."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from dllmark.sampling.settings import Dream, Llada, Llada2, Parallel, Sampler, steps_for


def blocks(sampler: Sampler, start: int, stop: int) -> list[range]:
    """Return the stretches of positions that are filled one after the other.

    >>> blocks(Llada(block_length=32), 10, 74)
    [range(10, 42), range(42, 74)]
    >>> blocks(Llada2(block_length=32), 10, 64)
    [range(0, 32), range(32, 64)]
    """
    size = stop - start if isinstance(sampler, Dream) else sampler.block_length
    if isinstance(sampler, Llada2):
        start -= start % size
    return [range(first, min(first + size, stop)) for first in range(start, stop, size)]


def steps_in_blocks(sampler: Sampler, stretches: list[range]) -> list[int]:
    """Return how many steps each of these blocks takes: evenly many, the remainder first.

    The last block may be shorter and then takes fewer, by its length, but at least one. `Parallel`
    and `Llada2` take at most one step a token.

    >>> sampler = Llada(steps=25, block_length=32)
    >>> steps_in_blocks(sampler, blocks(sampler, 0, 100))
    [8, 8, 8, 1]
    """
    *full, last = map(len, stretches)
    if isinstance(sampler, Parallel | Llada2):
        return [*full, last]
    length = sum(full) + last
    steps = steps_for(sampler, length)
    in_last = max(1, steps * last // length) if full else steps
    targets = [even_target(steps - in_last, number, len(full)) for number in range(len(full))]
    return [*(after - before for before, after in pairwise([0, *targets])), in_last]


def how_many(
    sampler: Sampler, step: int, steps: int, masked: Tensor, generator: torch.Generator
) -> Tensor:
    """Return [B]: how many tokens of a block each row reveals in a step, from its masks [B, W].

    For `Parallel` and `Llada2` it is the least.
    """
    if isinstance(sampler, Parallel | Llada2):
        return masked.any(1).long()
    if isinstance(sampler, Llada):
        revealed = (~masked).sum(1)
        return even_target(masked.shape[1], step, steps) - revealed
    if sampler.order == "origin":  # each mask flips by itself, so their number is binomial
        flips = torch.rand(masked.shape, generator=generator, device=masked.device)
        return (masked & (flips < dream_share(sampler, step, steps))).sum(1)
    return _dream_count(sampler, step, steps, masked.sum(1))


def _dream_count(sampler: Dream, step: int, steps: int, masks: Tensor) -> Tensor:
    """Return how many of so many masks a step reveals, rounded down in float32 as Dream does."""
    return (masks * dream_share(sampler, step, steps)).long()


def at_most(sampler: Sampler, width: int, steps: int) -> list[int | None]:
    """Return how many tokens of a block a row reveals at most in each of its steps.

    None where chance decides. Known in advance, a step has tensors of known shape.

    >>> at_most(Llada(steps=4, block_length=10), width=10, steps=4)
    [3, 3, 2, 2]
    """
    if isinstance(sampler, Parallel | Llada2):
        return [width] * steps
    if isinstance(sampler, Llada):
        targets = [even_target(width, step, steps) for step in range(steps)]
        if sampler.remask:
            return [*targets]
        return [after - before for before, after in pairwise([0, *targets])]
    if sampler.order == "origin":
        return [None] * steps
    counts: list[int | None] = []
    masks = torch.tensor([width])
    for step in range(steps):
        count = _dream_count(sampler, step, steps, masks)
        counts.append(int(count))
        masks = masks - count
    return counts


def even_target(length: int, step: int, steps: int) -> int:
    """Return how many tokens are revealed after a step: an even split, the remainder first.

    >>> [even_target(10, step, 4) for step in range(4)]
    [3, 6, 8, 10]
    """
    each, remainder = divmod(length, steps)
    return each * (step + 1) + min(step + 1, remainder)


def dream_share(sampler: Dream, step: int, steps: int) -> float:
    """Return the share of the masks that a step reveals: 1 - s/t, and all in the last.

    >>> [round(dream_share(Dream(), step, 4), 3) for step in range(4)]
    [0.25, 0.333, 0.499, 1.0]
    """
    if step == steps - 1:
        return 1.0
    time = torch.linspace(1, sampler.eps, steps + 1)
    return float(1 - time[step + 1] / time[step])
