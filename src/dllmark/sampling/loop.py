"""The denoising loop: look at the whole text, reveal a few tokens, look again.

A step has four parts. The model predicts every masked position of the block. Which positions are
revealed follows from those predictions as they are. Only the logits of these positions are then
leaned towards green pairs. A token is drawn for each, with the noise its candidate was drawn with:
a watermark of strength 0 changes nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllmark.sampling.choice import choose, positions_of
from dllmark.sampling.confidence import confidence, draw, draw_noise, temper
from dllmark.sampling.schedule import blocks, how_many
from dllmark.sampling.settings import Llada, Parallel, Sampler
from dllmark.watermark import Watermark

if TYPE_CHECKING:
    from dllmark.models.loading import Model


@dataclass
class Canvas:
    """A batch of texts as they stand: padding, prompts, text so far, masks.

    tokens      [B, L]  what stands at each position
    revealed    [B, L]  False where the model has yet to write
    attended    [B, L]  False at padding; None where there is none
    known_left  [B, L]  whether the left neighbour was revealed when the token was chosen
    start               where the prompts end
    """

    tokens: Tensor
    revealed: Tensor
    attended: Tensor | None
    known_left: Tensor
    start: int

    @property
    def length(self) -> int:
        """How long the texts are, prompts and padding counted."""
        return self.tokens.shape[1]


def denoise(
    model: Model,
    canvas: Canvas,
    sampler: Sampler,
    watermark: Watermark | None,
    generator: torch.Generator,
) -> Iterator[int]:
    """Reveal every token of the canvas; yield after each step its number, from 1."""
    number = 0
    stretches = blocks(sampler, canvas.start, canvas.length)
    for block in stretches:
        within = slice(block.start, block.stop)
        steps = len(block) if isinstance(sampler, Parallel) else sampler.steps // len(stretches)
        for step in range(steps):
            if isinstance(sampler, Llada) and sampler.remask:
                remask(canvas, within, sampler.remask, model.mask_id, generator)
            masked = ~canvas.revealed[:, within]
            if isinstance(sampler, Parallel) and not masked.any():
                break
            count = how_many(sampler, step, steps, masked, generator)
            if count.any():
                reveal(model, canvas, sampler, watermark, generator, block, count)
            number += 1
            yield number


def reveal(
    model: Model,
    canvas: Canvas,
    sampler: Sampler,
    watermark: Watermark | None,
    generator: torch.Generator,
    block: range,
    count: Tensor,
) -> None:
    """Write the `count` [B] tokens of a block that are next."""
    width, device = len(block), canvas.tokens.device
    # One position past the block too: the watermark predicts the right neighbour of its last.
    rows = torch.arange(block.start, min(block.stop + 1, canvas.length), device=device)
    rows = rows.expand(len(canvas.tokens), -1)
    logits = predict(model, canvas, sampler, rows)
    inside = logits[:, :width]
    noise = draw_noise(sampler, inside, generator)
    ends = torch.tensor(model.end_ids, device=device)
    score = confidence(sampler, inside, noise, ends, generator)
    masked = ~canvas.revealed[:, block.start : block.stop]
    positions = positions_of(choose(sampler, score, masked, count), block.start)

    which = torch.arange(len(positions), device=device)[:, None]
    row = (positions - block.start).clamp(min=0)
    if watermark is None:
        chosen = inside[which, row]
    else:
        chosen = watermark.bias(canvas.tokens, canvas.revealed, logits, positions, rows)
    tokens = draw(temper(sampler, chosen), None if noise is None else noise[which, row])

    filled = positions >= 0
    text, at = which.expand_as(positions)[filled], positions[filled]
    canvas.known_left[text, at] = canvas.revealed[text, at - 1]
    canvas.tokens[text, at] = tokens[filled]
    canvas.revealed[text, at] = True


def predict(model: Model, canvas: Canvas, sampler: Sampler, rows: Tensor) -> Tensor:
    """Return the model's logits [B, R, V] for some positions, -inf for what must not be written.

    That is the mask, ids past the tokenizer's, and with `suppress_end` the end of a text.
    """
    logits: Tensor = model.transformer(canvas.tokens, canvas.attended, rows).float()
    if isinstance(sampler, Llada) and sampler.cfg_scale:
        unprompted = canvas.tokens.clone()
        unprompted[:, : canvas.start] = model.mask_id
        without = model.transformer(unprompted, canvas.attended, rows).float()
        logits = without + (sampler.cfg_scale + 1) * (logits - without)
    logits[..., model.mask_id] = -torch.inf
    logits[..., model.tokenizer.vocab_size :] = -torch.inf
    if sampler.suppress_end:
        logits[..., list(model.end_ids)] = -torch.inf
    return logits


def remask(
    canvas: Canvas, within: slice, share: float, mask_id: int, generator: torch.Generator
) -> None:
    """Mask a share of a block's tokens again, each with that probability (as ReMDM does)."""
    revealed = canvas.revealed[:, within]
    draws = torch.rand(revealed.shape, generator=generator, device=revealed.device)
    again = revealed & (draws < share)
    canvas.revealed[:, within] &= ~again
    canvas.tokens[:, within].masked_fill_(again, mask_id)
