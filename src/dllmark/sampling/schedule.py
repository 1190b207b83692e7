"""Where each step may reveal tokens, and how many."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from dllmark.errors import DllmarkError
from dllmark.sampling.settings import Dream, Llada, Parallel, Sampler


def check_length(sampler: Sampler, tokens: int) -> None:
    """Raise `DllmarkError` unless the sampler can write this many tokens."""
    if tokens < 1:
        raise DllmarkError(f"tokens is how many to write, at least 1; got {tokens}")
    if not isinstance(sampler, Llada):
        return
    blocks, left_over = divmod(tokens, sampler.block_length)
    if left_over:
        raise DllmarkError(
            f"LLaDA needs tokens divisible by the block length: {tokens} tokens do not fill "
            f"blocks of {sampler.block_length}; write {tokens - left_over + sampler.block_length} "
            "tokens, or take other blocks"
        )
    if sampler.steps % blocks:
        raise DllmarkError(
            "LLaDA needs steps divisible by the number of blocks: "
            f"{tokens} tokens in blocks of {sampler.block_length} take "
            f"{blocks}, {2 * blocks}, {3 * blocks} … steps, not {sampler.steps}"
        )


def blocks(sampler: Sampler, start: int, stop: int) -> list[range]:
    """Return the stretches of positions that are filled one after the other.

    >>> blocks(Llada(block_length=32), 10, 74)
    [range(10, 42), range(42, 74)]
    """
    size = stop - start if isinstance(sampler, Dream) else sampler.block_length
    return [range(first, min(first + size, stop)) for first in range(start, stop, size)]


def how_many(
    sampler: Sampler, step: int, steps: int, masked: Tensor, generator: torch.Generator
) -> Tensor:
    """Return [B]: how many tokens of a block each row reveals in a step, from its masks [B, W].

    For `Parallel` it is the least.
    """
    if isinstance(sampler, Parallel):
        return masked.any(1).long()
    if isinstance(sampler, Llada):
        revealed = (~masked).sum(1)
        return even_target(masked.shape[1], step, steps) - revealed
    if sampler.order == "origin":  # each mask flips by itself, so their number is binomial
        flips = torch.rand(masked.shape, generator=generator, device=masked.device)
        return (masked & (flips < dream_share(sampler, step))).sum(1)
    return _dream_count(sampler, step, masked.sum(1))


def _dream_count(sampler: Dream, step: int, masks: Tensor) -> Tensor:
    """Return how many of so many masks a step reveals, rounded down in float32 as Dream does."""
    return (masks * dream_share(sampler, step)).long()


def at_most(sampler: Sampler, width: int, steps: int) -> list[int | None]:
    """Return how many tokens of a block a row reveals at most in each of its steps.

    None where chance decides. Known in advance, a step has tensors of known shape.

    >>> at_most(Llada(steps=4, block_length=10), width=10, steps=4)
    [3, 3, 2, 2]
    """
    if isinstance(sampler, Parallel):
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
        count = _dream_count(sampler, step, masks)
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


def dream_share(sampler: Dream, step: int) -> float:
    """Return the share of the masks that a step reveals: 1 - s/t, and all in the last.

    >>> [round(dream_share(Dream(steps=4), step), 3) for step in range(4)]
    [0.25, 0.333, 0.499, 1.0]
    """
    if step == sampler.steps - 1:
        return 1.0
    time = torch.linspace(1, sampler.eps, sampler.steps + 1)
    return float(1 - time[step + 1] / time[step])
