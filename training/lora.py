"""Low-rank adapters (Hu et al., 2021): a large model is taught by a small file beside its weights.

Every linear layer of the blocks learns a product of two thin matrices that is added to its own,
and the mask learns its row of the table of tokens. All else stays as it is, in bfloat16 on a GPU.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import linear

from dllmark.models.transformer import Transformer

SCALE = 2.0
"""What the product of the thin matrices is multiplied by: it is learned faster so."""


SCALE_OF = ".scale"
"""What follows a part's name in a file, for the scales of its rows."""


class LowRank(nn.Linear):
    """A linear layer whose own weights stay, and that learns a product of two thin matrices.

    >>> layer = LowRank(nn.Linear(6, 4), rank=2)
    >>> {name: part.shape for name, part in layer.named_parameters() if part.requires_grad}
    {'down': torch.Size([2, 6]), 'up': torch.Size([4, 2])}
    """

    def __init__(self, known: nn.Linear, rank: int) -> None:
        rows, columns = known.weight.shape
        super().__init__(columns, rows, bias=known.bias is not None, device="meta")
        self.weight, self.bias = known.weight, known.bias
        device = known.weight.device
        self.down = nn.Parameter(torch.randn(rank, columns, device=device) / math.sqrt(columns))
        self.up = nn.Parameter(torch.zeros(rows, rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., K] times both, [..., N]."""
        return super().forward(x) + SCALE * linear(linear(x, self.down), self.up)

    @torch.no_grad()
    def product(self) -> Tensor:
        """Return what was learned, as it is added to the weights."""
        return (SCALE * self.up @ self.down).to(self.weight.dtype)


class LearnedMask(nn.Embedding):
    """A table of tokens of which the row of the mask alone is learned."""

    def __init__(self, known: nn.Embedding, mask: int) -> None:
        super().__init__(*known.weight.shape, _weight=known.weight)
        self.weight, self.mask = known.weight, mask
        self.row = nn.Parameter(known.weight[mask].detach().float().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the rows [..., D] of tokens [...]."""
        rows = super().forward(tokens)
        return torch.where((tokens == self.mask)[..., None], self.row.to(rows.dtype), rows)


def add(model: Transformer, rank: int, mask: int) -> None:
    """Freeze a model, and give it adapters that change nothing yet."""
    torch.manual_seed(0)
    if model.embedding.weight.is_cuda:
        model.to(torch.bfloat16)
    model.requires_grad_(False)
    for block in model.blocks:
        for parent in (block, block.attention):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, LowRank(child, rank))
    model.embedding = LearnedMask(model.embedding, mask)


def learned(model: nn.Module) -> dict[str, Tensor]:
    """Return what is learned of a model: of one with adapters, these alone."""
    return {name: part for name, part in model.named_parameters() if part.requires_grad}


def save(model: Transformer, path: Path) -> None:
    """Write the adapters in 8 bits, with a scale for each row."""
    kept = {}
    for name, part in learned(model).items():
        scale = (part.detach().abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30).bfloat16()
        steps = (part.detach() / scale.float()).round().clamp(-127, 127)
        kept[name], kept[name + SCALE_OF] = steps.to(torch.int8).cpu(), scale.cpu()
    save_file(kept, path)


@torch.no_grad()
def load(model: Transformer, path: Path) -> None:
    """Read adapters of the same rank that `save` wrote."""
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise SystemExit(
            f"cannot read the adapter {path} ({error}): give the adapter.safetensors of a run, "
            "copied or downloaded again if it is cut short"
        ) from None
    parts = learned(model)
    shapes = {name: part.shape for name, part in parts.items()}
    shapes |= {name + SCALE_OF: (*shape[:-1], 1) for name, shape in shapes.items()}
    if {name: part.shape for name, part in found.items()} != shapes:
        raise SystemExit(f"the adapter {path} is of another model or rank: give its own --rank")
    if not all(found[name + SCALE_OF].float().isfinite().all() for name in parts):
        raise SystemExit(f"the adapter {path} is damaged, a scale is no number: copy it again")
    for name, part in parts.items():
        part.copy_(found[name].float() * found[name + SCALE_OF].float())


def merged(model: Transformer) -> dict[str, Tensor]:
    """Return the weights of a model as they are once its adapters, if it has any, are merged."""
    state = model.state_dict()
    for name, part in model.named_modules():
        if isinstance(part, LowRank):
            del state[f"{name}.down"], state[f"{name}.up"]
            state[f"{name}.weight"] = part.weight + part.product()
        if isinstance(part, LearnedMask):
            state[f"{name}.weight"] = part.weight.clone()
            state[f"{name}.weight"][part.mask] = state.pop(f"{name}.row").to(part.weight.dtype)
    if model.config.tied_head:
        state["head.weight"] = state["embedding.weight"]
    return state
