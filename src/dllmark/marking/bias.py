"""The bias by torch alone: from neighbours and their weights to the biased logits of each token.

Where the pairs are coloured depends on the green list: a hash works on any device, a matrix lies in
the host's memory. The sums are the same, term by term in the order of the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllmark.marking.prediction import predict, rows_at_once
from dllmark.marking.state import BiasSettings, State, texts_of
from dllmark.relation.greenlist import GreenList


def biased_logits(state: State, settings: BiasSettings, scored: Tensor, green: GreenList) -> Tensor:
    """Return the biased logits [B, K, V] of the positions to fill.

    Which tokens are reachable counts on a CPU alone: to pick them on a GPU would mean to wait for
    it.
    """
    index = state.logit_index(state.positions)
    chosen = state.logits[texts_of(index), index.clamp(min=0)]
    bias = torch.zeros(chosen.shape, dtype=torch.float32, device=chosen.device).flatten(0, 1)
    sides = (-1, +1)[: settings.sides]
    ids, weights = neighbours(state, settings, sides)
    weights = settings.delta * torch.where(scored[ids], weights, 0.0)
    of_sides = list(zip(ids.chunk(len(sides), 1), weights.chunk(len(sides), 1), strict=True))
    total = torch.zeros(state.positions.shape, dtype=torch.float32, device=chosen.device)
    for weight in (weight for _, terms in of_sides for weight in terms.unbind(-1)):
        total += weight
    reachable = state.reachable_tokens(total) if chosen.device.type == "cpu" else None
    for side, terms in zip(sides, of_sides, strict=True):
        side_ids, side_weights = (tensor.flatten(0, 1) for tensor in terms)
        some = None if reachable is None else reachable.flatten(0, 1)
        add_green(bias, green, side, side_ids, side_weights, some)
    bias = torch.where(scored, bias, (settings.gamma * total).view(-1, 1))
    exact = torch.promote_types(chosen.dtype, torch.float32)
    return (chosen.to(exact) + bias.view(chosen.shape)).to(chosen.dtype)


def neighbours(
    state: State, settings: BiasSettings, sides: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return the tokens on each side of the positions, side after side, and their weights.

    They are [B, sides · K, C]: one token for what is revealed, or up to C predicted ones.
    """
    filled = state.positions >= 0
    places = torch.cat([torch.where(filled, state.positions + side, -1) for side in sides], 1)
    inside = (places >= 0) & (places < state.length)
    at = places.clamp(0, state.length - 1).long()
    known = (state.revealed.gather(1, at) & inside)[..., None]
    ids = torch.where(known, state.tokens.gather(1, at)[..., None].long(), 0)
    if settings.top_k == 0:
        return ids, known.float()
    missing = inside & ~known[..., 0]
    index = torch.where(missing, state.logit_index(places), -1)
    predicted, weights = predict(state, settings, index)
    certain = torch.zeros_like(weights)
    certain[..., 0] = 1
    weights = torch.where((index >= 0)[..., None], weights, 0.0)
    return torch.where(known, ids, predicted), torch.where(known, certain, weights)


def add_green(
    bias: Tensor,
    green: GreenList,
    side: int,
    ids: Tensor,
    weights: Tensor,
    reachable: Tensor | None = None,
) -> None:
    """Add to each row of the bias [N, V] the weighted green lists of its neighbours [N, C].

    On a CPU it may be enough to do so for the reachable tokens [N, V]. Weights of 0 are left out on
    the CPU alone: to find them on a GPU would mean to wait for it.
    """
    if reachable is not None:
        _add_reachable(bias, green, side, ids, weights, reachable)
        return
    for neighbour, weight in zip(ids.T, weights.T, strict=True):
        if _answers_on(green, bias.device):
            active = torch.arange(len(weight), device=weight.device)
        else:
            active = weight.nonzero()[:, 0]
        for part in torch.split(active, rows_at_once(bias.shape[-1])):
            colours = _green_list(green, side, neighbour[part])
            bias[part] += torch.where(colours, weight[part, None], 0.0)


def _add_reachable(
    bias: Tensor, green: GreenList, side: int, ids: Tensor, weights: Tensor, reachable: Tensor
) -> None:
    """Do what `add_green` does for the reachable tokens [N, V] alone, on a CPU.

    The pairs of a token with all its neighbours are coloured in one go.
    """
    at_once = max(1, rows_at_once(bias.shape[-1]) // ids.shape[1])
    for part in torch.split(torch.arange(len(bias)), at_once):
        number, tokens = reachable[part].nonzero(as_tuple=True)
        number = part[number]
        neighbours, terms = ids[number], weights[number]
        counts = terms != 0
        here = tokens[:, None].expand_as(neighbours)
        pairs = (neighbours, here) if side < 0 else (here, neighbours)
        colours = torch.from_numpy(green.pairs(*(tensor[counts].numpy() for tensor in pairs)))
        terms[counts] = torch.where(colours, terms[counts], 0.0)
        total = bias[number, tokens]
        for term in terms.T:
            total += term
        bias[number, tokens] = total


def _green_list(green: GreenList, side: int, ids: Tensor) -> Tensor:
    """Return [N, V]: which tokens are green beside each neighbour on that side."""
    look_up = green.rows if side < 0 else green.columns
    if _answers_on(green, ids.device):
        colours: Tensor = look_up(ids)  # type: ignore[assignment, arg-type]
        return colours
    return torch.from_numpy(look_up(ids.cpu().numpy())).to(ids.device)


def _answers_on(green: GreenList, device: torch.device) -> bool:
    """Return whether a green list works on the device; on the CPU, numpy is faster than torch."""
    return device.type != "cpu" and green.takes_tensors
