"""Tokens that would repeat a pair of neighbours which stands in the text already.

A pair is counted once, so such a token adds nothing to the count, whatever its colour. A pair
stands where both of its tokens are revealed, and a token repeats it beside a revealed neighbour.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllmark.marking.prediction import rows_at_once
from dllmark.marking.state import BiasSettings, State


def repeats(tokens: Tensor, revealed: Tensor, at: Tensor, likely: Tensor, side: int) -> Tensor:
    """Return [B, W, C]: which of the likely tokens at places [W] of texts [B, L] repeat a pair.

    >>> tokens = torch.tensor([[5, 6, 9, 5, 2]])  # 5 6 again would be a repetition
    >>> likely = torch.tensor([[[6, 9]]])
    >>> repeats(tokens, tokens != 2, torch.tensor([4]), likely, -1).tolist()
    [[[True, False]]]
    """
    beside = at + side
    inside = (beside >= 0) & (beside < tokens.shape[1])
    beside = beside.clamp(0, tokens.shape[1] - 1)
    known = (revealed.index_select(1, beside) & inside)[..., None]
    near = tokens.index_select(1, beside)[..., None].expand_as(likely)
    asked = _number(near, likely) if side < 0 else _number(likely, near)
    both = revealed[:, :-1] & revealed[:, 1:]
    there = torch.where(both, _number(tokens[:, :-1], tokens[:, 1:]), -1)
    there = there.sort(1).values
    index = torch.searchsorted(there, asked.flatten(1)).clamp(max=there.shape[1] - 1)
    return (there.gather(1, index).view(asked.shape) == asked) & known


def _number(left: Tensor, right: Tensor) -> Tensor:
    """Return one number a pair of tokens."""
    return left.long() << 32 | right.long()


def repeating(state: State, side: int, scored: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B, K, L - 1]: the tokens of the vocabulary that repeat a pair, and [B, K, 1]: if any.

    A pair has two tokens that are `scored` [V]: an end of text beside another repeats nothing. A
    token may be named often. Where a position has none that is token 0, so that no shape depends
    on how many there are: nobody has to wait for a GPU. A revealed position may be edited, and what
    stands there is no repetition of itself.

    >>> tokens = torch.tensor([[5, 6, 9, 5, 2]])
    >>> state = State(tokens, tokens != 2, torch.zeros(1, 5, 10), torch.tensor([[4, 1]]))
    >>> ids, some = repeating(state, -1, torch.ones(10, dtype=torch.bool))
    >>> ids.tolist(), some.tolist()
    ([[[6, 6, 6, 6], [0, 0, 0, 0]]], [[[True], [False]]])
    """
    tokens, revealed, positions = state.tokens, state.revealed, state.positions[..., None]
    beside = (positions + side).clamp(0, state.length - 1).long()
    known = (positions >= 0) & (positions + side == beside)
    known &= revealed.gather(1, beside[..., 0])[..., None]
    near = tokens.gather(1, beside[..., 0])[..., None]
    first = torch.arange(state.length - 1, device=tokens.device)
    elsewhere = (first != positions) & (first + 1 != positions)
    words = _words(state, scored)
    stands = (words[:, :-1] & words[:, 1:])[:, None] & elsewhere
    left, right = tokens[:, None, :-1], tokens[:, None, 1:]
    same, other = (left == near, right) if side < 0 else (right == near, left)
    found = torch.where(same & stands & known, other.long(), -1)
    most = found.amax(-1, keepdim=True)
    return torch.where(found >= 0, found, most.clamp(min=0)), most >= 0


def _words(state: State, scored: Tensor) -> Tensor:
    """Return [B, L]: where a scored token is revealed. What is not may be no token of the model."""
    return state.revealed & scored[torch.where(state.revealed, state.tokens, 0).long()]


def level_repeats(biased: Tensor, state: State, settings: BiasSettings, scored: Tensor) -> Tensor:
    """Give the tokens that repeat a pair the mean bias: γδ for each side with a word, or a mask.

    It is written into the biased logits [B, K, V]. Every position is compared with every pair of
    its text, so many positions by parts: what is worked on at a time is bounded.
    """
    (batch, count), length = state.positions.shape, state.length
    text = torch.arange(batch, device=biased.device)[:, None, None]
    index = state.logit_index(state.positions).clamp(min=0)[..., None]
    exact, sides = torch.promote_types(biased.dtype, torch.float32), (-1, +1)[: settings.sides]
    counts = ~state.revealed | _words(state, scored)
    beside = torch.stack([state.positions + side for side in sides], -1)
    inside = (beside >= 0) & (beside < length)
    inside &= counts[text, beside.clamp(0, length - 1)]
    mean = settings.gamma * settings.delta * inside.sum(-1, keepdim=True).float()
    at_once = max(1, rows_at_once(length) // max(1, batch))
    for start in range(0, count if length > 1 else 0, at_once):
        part = slice(start, start + at_once)
        some, rows = replace(state, positions=state.positions[:, part]), biased[:, part]
        for side in sides:
            ids, there = repeating(some, side, scored)
            plain = state.logits[text, index[:, part], ids].to(exact)
            level = (plain + mean[:, part]).to(rows.dtype)
            rows.scatter_(2, ids, torch.where(there, level, rows.gather(2, ids)))
    return biased
