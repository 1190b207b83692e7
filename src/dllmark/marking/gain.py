"""What candidates for a block's positions would add to the count of green pairs.

A bias over the whole vocabulary is for samplers that draw from it. Who weighs a few candidates
needs the pairs of these alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dllmark.marking.repeats import repeats
from dllmark.marking.state import BiasSettings
from dllmark.relation.greenlist import GreenList


class Block(NamedTuple):
    """A block of texts that are being written, and its likeliest tokens.

    tokens       [B, L]     the texts: prompts, what is written, masks
    revealed     [B, L]     False where the model has yet to write
    first        []         where the block begins
    likely       [B, R, C]  the likeliest tokens, best first, of its positions and of one past it
    p            [B, R, C]  their probabilities
    prompt_mask  [B, L]     True in the prompts; None where there are none
    """

    tokens: Tensor
    revealed: Tensor
    first: Tensor
    likely: Tensor
    p: Tensor
    prompt_mask: Tensor | None = None


def candidate_gains(
    block: Block, width: int, settings: BiasSettings, scored: Tensor, green: GreenList
) -> Tensor:
    """Return [B, W, C]: δ for each green pair that a likely token makes, less γδ for each side.

    The block has `width` positions, of which the masked ones count. A neighbour that is not
    revealed counts by the probabilities of its likeliest tokens; what is left of them counts as
    red, so a place is worth less, the less is known beside it: who is written there later has more
    to gain. A token that would repeat a pair of the text gains what is the mean over all keys,
    since a pair is counted once. So do special tokens.
    """
    ids, weights, inside = weighed_neighbours(block, width, settings.top_k, scored)
    here = block.likely[:, :width]
    at = block.first + torch.arange(width, device=here.device)
    masked = ~block.revealed.index_select(1, at)[..., None, None]
    neutral = neutral_candidates(block, width, scored)
    gain = torch.zeros(here.shape, dtype=torch.float32, device=here.device)
    for side in (-1, +1):
        beside = slice(1 + side, 1 + side + width)
        near, weight = ids[:, beside, None], weights[:, beside, None]
        pairs = (near, here[..., None]) if side < 0 else (here[..., None], near)
        colours = pair_colours(green, *pairs, (weight != 0) & masked)
        green_share = torch.where(neutral[..., None], settings.gamma, colours)
        gain += (green_share * weight).sum(-1) - settings.gamma * inside[beside, None]
    return settings.delta * gain


def neutral_candidates(block: Block, width: int, scored: Tensor) -> Tensor:
    """Return [B, W, C]: which likely tokens are special, or would repeat a pair of their text."""
    here = block.likely[:, :width]
    at = block.first + torch.arange(width, device=here.device)
    left, right = (repeats(block.tokens, block.revealed, at, here, side) for side in (-1, +1))
    return ~scored[here] | left | right


def weighed_neighbours(
    block: Block, width: int, top_k: int, scored: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what stands from before a block to behind it.

    That is tokens [B, W + 2, top_k], their weights, and [W + 2]: 1 where a text has a place at all.
    """
    length, covered = block.tokens.shape[1], block.likely.shape[1]
    place = torch.arange(-1, width + 1, device=block.tokens.device)
    at = block.first + place
    inside, there = (at >= 0) & (at < length), (place >= 0) & (place < covered)
    at, place = at.clamp(0, length - 1), place.clamp(0, covered - 1)
    known = (block.revealed.index_select(1, at) & inside)[..., None]
    tokens = block.tokens.index_select(1, at)[..., None]
    ids = block.likely.index_select(1, place)[..., :top_k]
    p = block.p.index_select(1, place)[..., :top_k] * there[:, None]
    certain = torch.zeros_like(p)
    certain[..., 0] = 1
    ids = torch.where(known, tokens, ids)
    weights = torch.where(known, certain, p)
    return ids, torch.where(scored[ids], weights, 0.0), inside.float()


def pair_colours(green: GreenList, left: Tensor, right: Tensor, needed: Tensor) -> Tensor:
    """Return the colour of each pair; on a CPU, or for a list in the host's memory, by numpy.

    There only the pairs that are needed are hashed. To pick them on a GPU would mean to wait.
    """
    if left.device.type != "cpu" and green.takes_tensors:
        colours: Tensor = green.pairs(left, right)  # type: ignore[assignment, arg-type]
        return colours
    lefts, rights, some = np.broadcast_arrays(*(t.cpu().numpy() for t in (left, right, needed)))
    found = np.zeros(some.shape, dtype=np.bool_)
    found[some] = green.pairs(lefts[some], rights[some])
    return torch.from_numpy(found).to(left.device)
