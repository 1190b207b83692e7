"""The denoising loop: look at the whole text, reveal a few tokens, look again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from dllmark.marking.watermark import Watermark
from dllmark.relation.key import Identity
from dllmark.relation.tokenizer import Tokenizer
from dllmark.sampling.canvas import Canvas, remask
from dllmark.sampling.denoiser import Denoiser
from dllmark.sampling.joint import JointDenoiser
from dllmark.sampling.schedule import at_most, blocks, how_many, steps_in_blocks
from dllmark.sampling.settings import Llada, Llada2, Parallel, Sampler

if TYPE_CHECKING:
    from dllmark.models.loading import Model


class OtherMark(Protocol):
    """A watermark that is not ours, which experiments compare with: it brings its own denoiser."""

    identity: Identity
    tokenizer: Tokenizer

    def denoiser(
        self, model: Model, canvas: Canvas, sampler: Sampler, generator: torch.Generator
    ) -> Denoiser:
        """Return what reveals the tokens of a canvas."""


def denoise(
    model: Model,
    canvas: Canvas,
    sampler: Sampler,
    watermark: Watermark | OtherMark | None,
    generator: torch.Generator,
) -> Iterator[int]:
    """Reveal every token of the canvas; yield after each step its number, from 1."""
    denoiser = make_denoiser(model, canvas, sampler, watermark, generator)
    number = 0
    stretches = blocks(sampler, canvas.start, canvas.length)
    for block, steps in zip(stretches, steps_in_blocks(sampler, stretches), strict=True):
        within = slice(block.start, block.stop)
        fresh = True
        for step, most in enumerate(at_most(sampler, len(block), steps)):
            if isinstance(sampler, Llada) and sampler.remask:
                remask(canvas, within, sampler.remask, model.mask_id, generator)
            masked = ~canvas.revealed[:, within]
            if isinstance(sampler, Parallel | Llada2) and not masked.any():
                break
            count = how_many(sampler, step, steps, masked, generator)
            most = int(count.max()) if most is None else most
            if most:
                denoiser.reveal(block, count, most, fresh)
                fresh = False
            number += 1
            yield number
        if isinstance(sampler, Llada2):
            for _ in denoiser.edit(block, sampler):
                number += 1
                yield number
            if ended(canvas, block.stop, model.end_ids):
                return


def make_denoiser(
    model: Model,
    canvas: Canvas,
    sampler: Sampler,
    watermark: Watermark | OtherMark | None,
    generator: torch.Generator,
) -> Denoiser:
    """Return what does the steps of a sampler under a watermark."""
    if watermark is not None and not isinstance(watermark, Watermark):
        return watermark.denoiser(model, canvas, sampler, generator)
    joint = watermark is not None and watermark.strategy.joint
    kind = JointDenoiser if joint else Denoiser
    return kind(model, canvas, sampler, watermark, generator)


def ended(canvas: Canvas, stop: int, ends: Sequence[int]) -> bool:
    """Return whether every text has an end before a position."""
    written = canvas.tokens[:, canvas.start : stop]
    ids = torch.tensor(ends, device=written.device)
    return bool(torch.isin(written, ids).any(1).all())
