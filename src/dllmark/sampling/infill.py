"""Write some tokens of given texts anew: they are masked, and the model fills them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from dllmark.errors import DllmarkError
from dllmark.relation.tokenizer import Ids
from dllmark.sampling.canvas import Canvas
from dllmark.sampling.denoiser import Denoiser
from dllmark.sampling.schedule import blocks
from dllmark.sampling.settings import BLOCK_LENGTH, TEMPERATURE, Llada, Llada2, Sampler
from dllmark.sampling.texts import batch_generator

if TYPE_CHECKING:
    from dllmark.models.loading import Model


@torch.inference_mode()
def infill(
    model: Model,
    texts: Sequence[Ids],
    positions: Sequence[Ids],
    *,
    temperature: float = TEMPERATURE,
    seed: int = 0,
) -> list[Ids]:
    """Return the texts with the tokens at some positions of each written by the model, unmarked.

    The texts are one batch; a block-causal model takes them one by one. It sees no prompt, only the
    text around the masks, and fills the mask it is most certain of first, one in each step, or what
    is certain enough block by block. No text gets shorter: the end of a text is never filled in.

    >>> ids = model.tokenizer.encode("The sky is blue.")  # doctest: +SKIP
    >>> infill(model, [ids], [np.array([3])])  # doctest: +SKIP
    """
    size = 1 if model.config.block_causal else len(texts)
    filled: list[Ids] = []
    for first in range(0, len(texts), size):
        generator = batch_generator(model, seed, first)
        together = slice(first, first + size)
        filled += _fill(model, texts[together], positions[together], temperature, generator)
    return filled


def _fill(
    model: Model,
    texts: Sequence[Ids],
    positions: Sequence[Ids],
    temperature: float,
    generator: torch.Generator,
) -> list[Ids]:
    """Return one batch with its masks filled in."""
    length = max(map(len, texts))
    if length > model.config.max_length:
        raise DllmarkError(
            f"a text has {length} tokens, and {model.name} takes {model.config.max_length}: "
            "shorten it"
        )
    canvas = _canvas(model, texts, positions, length)
    if canvas.revealed.all():
        return [np.array(ids) for ids in texts]
    sampler: Sampler = Llada(block_length=length, temperature=temperature, suppress_end=True)
    if model.config.block_causal:
        block_length = model.config.block_length or BLOCK_LENGTH
        sampler = Llada2(block_length=block_length, temperature=temperature, suppress_end=True)
    most = sampler.block_length if isinstance(sampler, Llada2) else 1
    denoiser = Denoiser(model, canvas, sampler, None, generator)
    for block in blocks(sampler, 0, length):
        fresh = True  # a later block needs what a block-causal model computes here, masks or not
        while fresh or not canvas.revealed[:, block.start : block.stop].all():
            count = (~canvas.revealed[:, block.start : block.stop]).any(1).long()
            denoiser.reveal(block, count, min(most, len(block)), fresh)
            fresh = False
    rows = canvas.tokens.cpu().numpy()
    return [row[length - len(ids) :] for row, ids in zip(rows, texts, strict=True)]


def _canvas(model: Model, texts: Sequence[Ids], positions: Sequence[Ids], length: int) -> Canvas:
    """Return the texts, padded on the left to one length, with masks at the positions."""
    shape = (len(texts), length)
    tokens = np.full(shape, model.pad_id, dtype=np.int64)
    attended, revealed = np.zeros(shape, dtype=np.bool_), np.ones(shape, dtype=np.bool_)
    for row, (ids, at) in enumerate(zip(texts, positions, strict=True)):
        padding = length - len(ids)
        tokens[row, padding:] = ids
        attended[row, padding:] = True
        tokens[row, padding + at] = model.mask_id
        revealed[row, padding + at] = False
    place = model.device
    return Canvas(
        tokens=torch.from_numpy(tokens).to(place),
        revealed=torch.from_numpy(revealed).to(place),
        attended=None if attended.all() else torch.from_numpy(attended).to(place),
        known_left=torch.zeros(shape, dtype=torch.bool, device=place),
        start=0,
    )
