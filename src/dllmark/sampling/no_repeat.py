"""No n-gram twice, in texts that are written in any order.

Left to right, an n-gram is repeated by its last token. Here a token may be the last to be written
at any place of an n-gram, so we look at what stands on both sides of it. A word that is begun may
always be finished: what else could stand there would make it no word. And no word may stand twice
in a row: a small model that must not go on as before says its last word again.
"""

from __future__ import annotations

import torch
from torch import Tensor


def forbid_repeats(
    logits: Tensor, tokens: Tensor, text: Tensor, at: Tensor, size: int, edges: Tensor, never: int
) -> None:
    """Set the logits [B, R, V] of what would repeat an n-gram of this size to -inf, in place.

    They are those of the positions `at` [R] of the tokens [B, L], of which those are `text` [B, L]
    that may not be repeated. `edges` [2, V] says which tokens begin, and which end, with a
    character of words. `never` is a token whose logits are -inf in any case.

    The token of another position is forbidden where so many neighbours of the two are alike that
    they would make an n-gram with it, unless it makes one word with a neighbour. So is the token
    of a neighbour that is a word.
    """
    length = tokens.shape[1]
    for side in (-1, +1):
        doubled = _doubled(tokens, text, at, side, edges, never)
        logits.scatter_(2, doubled[..., None], -torch.inf)
    if size >= length:
        return
    others = torch.arange(length, device=tokens.device)
    apart = others != at[:, None]
    alike = torch.ones((), dtype=torch.long, device=tokens.device)
    for side in (-1, +1):
        run = text[:, None] & apart  # [B, R, L]
        for step in range(side, side * size, side):
            mine, theirs = at + step, others + step
            inside = ((mine >= 0) & (mine < length))[:, None] & (theirs >= 0) & (theirs < length)
            mine, theirs = mine.clamp(0, length - 1), theirs.clamp(0, length - 1)
            itself = theirs == at[:, None]  # where the new token would stand
            beside = torch.where(itself, tokens[:, None], tokens[:, None, theirs])
            known = text[:, mine, None] & (text[:, None, theirs] | itself)
            run = run & inside & known & (tokens[:, mine, None] == beside)
            alike = alike + run
    repeated = (alike >= size) & text[:, None] & apart & ~_one_word(tokens, text, at, edges)
    logits.scatter_(2, torch.where(repeated, tokens[:, None], never), -torch.inf)


def _one_word(tokens: Tensor, text: Tensor, at: Tensor, edges: Tensor) -> Tensor:
    """Return [B, R, L]: which tokens would make one word with what stands beside the positions."""
    begins, ends = edges[:, torch.where(text, tokens, 0)] & text
    left, right = (at - 1).clamp(min=0), (at + 1).clamp(max=tokens.shape[1] - 1)
    after, before = ends[:, left] & (at > left), begins[:, right] & (at < right)
    made: Tensor = (after[..., None] & begins[:, None]) | (before[..., None] & ends[:, None])
    return made


def _doubled(
    tokens: Tensor, text: Tensor, at: Tensor, side: int, edges: Tensor, never: int
) -> Tensor:
    """Return [B, R]: the word on one side of the positions, which must not stand there twice.

    It is `never` where there is none, or where the second would be the beginning of a longer one.
    """
    begins, ends = edges[:, torch.where(text, tokens, 0)] & text
    beside, last = at + side, max(0, side)  # where the second of the two words would end
    inside = (beside >= 0) & (beside < tokens.shape[1])
    after = (at + last + 1).clamp(max=tokens.shape[1] - 1)
    goes_on = begins[:, after] & (at + last + 1 == after)
    beside = beside.clamp(0, tokens.shape[1] - 1)
    word = (ends & ~begins)[:, beside] & inside & ~goes_on
    return torch.where(word, tokens[:, beside], never)
