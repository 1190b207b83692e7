"""A mixture of experts: each token goes through a few of many small feed-forward layers.

LLaDA2 routes as DeepSeek does: experts stand in groups, a token picks groups, then experts of these
groups, by a sigmoid of its router's logits and a correction that only counts for the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from dllmark.errors import ModelError


@dataclass(frozen=True)
class Experts:
    """The numbers of a mixture.

    `chosen` of `count` experts, of `width` each, take part in a token, from `groups_chosen` of
    `groups`. `shared` times as wide is the layer that every token goes through. `scale` is what the
    weights of the chosen add up to. The layers before `first_layer` have no experts.
    """

    count: int
    chosen: int
    width: int
    shared: int
    groups: int
    groups_chosen: int
    scale: float
    first_layer: int

    def check(self) -> None:
        """Raise `ModelError` unless a token can choose so many."""
        if not 1 <= self.groups_chosen <= self.groups or self.count % self.groups:
            raise ModelError(
                f"{self.count} experts in {self.groups} groups, {self.groups_chosen} of them "
                "chosen: groups are equally large, and there are as many as chosen"
            )
        in_reach = self.count // self.groups * self.groups_chosen
        if self.count // self.groups < 2 or not 2 <= self.chosen <= in_reach:
            raise ModelError(
                f"{self.chosen} experts of {in_reach} in reach are chosen: a token takes at least "
                "2, and a group has at least 2"
            )


class Mixture(nn.Module):
    """The feed-forward layer of a block with experts."""

    def __init__(self, experts: Experts, width: int) -> None:
        super().__init__()
        if not hasattr(torch.nn.functional, "grouped_mm"):
            raise ModelError(
                f"a mixture of experts needs a newer torch than {torch.__version__}: "
                "`pip install -U torch`"
            )
        self.experts = experts
        count, inner, shared = experts.count, experts.width, experts.width * experts.shared
        self.router = nn.Parameter(torch.empty(count, width))
        self.correction = nn.Parameter(torch.empty(count))
        self.gate = nn.Parameter(torch.empty(count, inner, width))
        self.up = nn.Parameter(torch.empty(count, inner, width))
        self.down = nn.Parameter(torch.empty(count, width, inner))
        if shared:
            self.shared_gate = nn.Linear(width, shared, bias=False)
            self.shared_up = nn.Linear(width, shared, bias=False)
            self.shared_down = nn.Linear(shared, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the chosen experts, and the shared ones, make of [B, L, D]."""
        flat = x.reshape(-1, x.shape[-1])
        chosen, weights = self.route(flat)
        sorted_, order = chosen.flatten().sort(stable=True)
        each = torch.arange(self.experts.count, device=x.device)
        ends = torch.searchsorted(sorted_, each, right=True).int()

        def grouped(rows: Tensor, matrices: Tensor) -> Tensor:
            return torch.nn.functional.grouped_mm(rows, matrices.mT, offs=ends)

        rows = flat[order // self.experts.chosen]
        made = grouped(silu(grouped(rows, self.gate)) * grouped(rows, self.up), self.down)
        back = torch.empty_like(made).index_copy_(0, order, made)
        mixed = (back.view(*chosen.shape, -1) * weights[..., None]).sum(1).to(x.dtype).view(x.shape)
        if self.experts.shared:
            mixed = mixed + self.shared_down(silu(self.shared_gate(x)) * self.shared_up(x))
        return mixed

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts [N, chosen] of each row, and how much each counts, in float32."""
        numbers = self.experts
        scores = (rows.float() @ self.router.float().T).sigmoid()
        wanted = scores + self.correction.float()
        groups = wanted.view(len(rows), numbers.groups, -1)
        best = groups.topk(2).values.sum(-1).topk(numbers.groups_chosen).indices
        allowed = torch.zeros(groups.shape[:2], dtype=torch.bool, device=rows.device)
        allowed = allowed.scatter(1, best, True)[..., None]
        reachable = groups.masked_fill(~allowed, -torch.inf).flatten(1)
        chosen = reachable.topk(numbers.chosen).indices
        weights = scores.gather(1, chosen)
        return chosen, weights / weights.sum(-1, keepdim=True) * numbers.scale
