"""A batch of texts while they are written."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Canvas:
    """A batch of texts as they stand: padding, prompts, text so far, masks.

    tokens      [B, L]  what stands at each position
    revealed    [B, L]  False where the model has yet to write
    attended    [B, L]  False at padding; None where there is none
    known_left  [B, L]  whether the left neighbour was revealed when the token was chosen
    start               where the prompts end
    pair                whether it is one text twice: the second gets no mark, and the same noise
    """

    tokens: Tensor
    revealed: Tensor
    attended: Tensor | None
    known_left: Tensor
    start: int
    pair: bool = False

    @property
    def length(self) -> int:
        """How long the texts are, prompts and padding counted."""
        return self.tokens.shape[1]

    @property
    def prompt_mask(self) -> Tensor:
        """True at padding and prompts: [B, L]."""
        at = torch.arange(self.length, device=self.tokens.device)
        return (at < self.start).expand_as(self.tokens)


def write(canvas: Canvas, block: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """Put tokens [B, K] at their positions [B, K], which are in the block; -1 takes none."""
    batch, width = len(tokens), len(block)
    past = torch.where(positions >= 0, positions - block[0], width)  # a column that is cut off
    new = torch.zeros(batch, width + 1, dtype=torch.bool, device=tokens.device)
    new = new.scatter(1, past, True)[:, :width]
    given = torch.zeros(batch, width + 1, dtype=tokens.dtype, device=tokens.device)
    given = given.scatter(1, past, tokens)[:, :width]
    left = canvas.revealed.index_select(1, (block - 1).clamp(min=0))
    for tensor, values in (
        (canvas.known_left, left),
        (canvas.tokens, given),
        (canvas.revealed, new),
    ):
        tensor.index_copy_(1, block, torch.where(new, values, tensor.index_select(1, block)))


def remask(
    canvas: Canvas, within: slice, share: float, mask_id: int, generator: torch.Generator
) -> None:
    """Mask a share of a block's tokens again, each with that probability (as ReMDM does)."""
    revealed = canvas.revealed[:, within]
    draws = torch.rand(revealed.shape, generator=generator, device=revealed.device)
    again = revealed & (draws < share)
    canvas.revealed[:, within] &= ~again
    canvas.tokens[:, within].masked_fill_(again, mask_id)
