"""What training hides of a text, and how much each hidden token weighs in the loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

CLEAN_PROMPT, CLEAN_PREFIX = 0.7, 0.3
"""The share of rows whose prompt is never masked, and of those whose beginning is not."""

IN_BLOCKS, BLOCK = 0.4, 32
"""The share of rows masked as LLaDA's sampler sees a text, and the tokens of its block."""

BLOCK_WEIGHT, LATER_WEIGHT = 3.0, 0.2
"""What tokens of the block weigh in such a row (over the share masked), and what follows it."""

PADDING = 0.05
"""What the ends of text that fill a row up weigh in the loss."""


def spoil(
    tokens: Tensor, sizes: Tensor, random: torch.Generator, mask: int
) -> tuple[Tensor, Tensor]:
    """Return masked rows and the weights of their tokens, for training."""
    size, prompt = sizes[:, :1], sizes[:, 1:]
    draws = torch.rand(size.shape, generator=random, device=tokens.device)
    clean = torch.where(draws < CLEAN_PROMPT, prompt, 0)
    noisy, weight = corrupt(
        tokens, random, prefixes=CLEAN_PREFIX, lowest=0.02, clean=clean, mask=mask
    )
    draws = torch.rand(size.shape, generator=random, device=tokens.device)
    seen, weight_seen = as_sampled(tokens, size, prompt, random, mask)
    noisy = torch.where(draws < IN_BLOCKS, seen, noisy)
    weight = torch.where(draws < IN_BLOCKS, weight_seen, weight)
    padding = torch.arange(tokens.shape[1], device=tokens.device) >= size
    return noisy, torch.where(padding, PADDING * weight, weight)


def as_sampled(
    tokens: Tensor, size: Tensor, prompt: Tensor, random: torch.Generator, mask: int
) -> tuple[Tensor, Tensor]:
    """Return rows as a sampler that writes in blocks sees them, and the weights of their tokens.

    All is there before the block, a part of the block, and nothing after it: text masked evenly is
    never like that.
    """
    place = torch.arange(tokens.shape[1], device=tokens.device)

    def uniform(width: int = 1) -> Tensor:
        return torch.rand(len(tokens), width, generator=random, device=tokens.device)

    start = prompt + (uniform() * (size - prompt)).long()
    share = 0.1 + 0.9 * uniform()
    block, later = (place >= start) & (place < start + BLOCK), place >= start + BLOCK
    hidden = block & (uniform(tokens.shape[1]) < share)
    weight = torch.where(hidden, BLOCK_WEIGHT / share, LATER_WEIGHT * later)
    return torch.where(hidden | later, mask, tokens), weight


def corrupt(
    tokens: Tensor,
    random: torch.Generator,
    *,
    prefixes: float,
    lowest: float,
    clean: Tensor,
    mask: int,
) -> tuple[Tensor, Tensor]:
    """Mask each row at its own rate t; return the masked ids and each token's weight in the loss.

    The rates of a batch are spread evenly over [lowest, 1], which lowers the noise of the bound. A
    masked token weighs 1/t, so that the expected sum is the negative evidence bound. The first
    `clean` [rows, 1] tokens are never masked, and in a share of rows more, up to a random place.
    """
    rows, length = tokens.shape
    device = tokens.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=random, device=device)

    rate = (torch.arange(rows, device=device) / rows + uniform(1)) % 1 * (1 - lowest) + lowest
    rate = rate[torch.randperm(rows, generator=random, device=device)][:, None]
    kept = (uniform(rows, 1) < prefixes) * uniform(rows, 1) * length
    place = torch.arange(length, device=device)
    masked = (uniform(rows, length) < rate) & (place >= kept) & (place >= clean)
    return torch.where(masked, mask, tokens), masked / rate


def weighed(logits: Tensor, tokens: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted surprise at the tokens, over the number of tokens."""
    losses = cross_entropy(logits.flatten(0, 1).float(), tokens.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / tokens.numel()
