"""Teach a trained model not to repeat itself: unlikelihood of what it copies from its own texts.

Usage: python training/unloop.py packed/ --start model.safetensors --out unlooped.safetensors

A small diffusion model that always writes its most certain token falls into loops, because nothing
is as certain as a copy. Likelihood on good text cannot unlearn that: good text holds no loops.
Unlikelihood can (Welleck et al., 2020): let the model write, find the tokens it copied, and lower
their probability in the very state it chose them in. The training loss goes on beside it. Writes
the weights, and beside them a log. `mix.py` then finds a place between the old and the new weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dllmark.quality.repetition import repeated_ngrams
from dllmark.sampling.settings import Llada
from train import MASK
from tuning import BLOCK, FIRST, LENGTH, PROMPT, Tuning, command_line

STRETCH = 4
"""A token is copied when it is part of this many tokens in a row that stand elsewhere too."""

NATURAL = 0.1
"""Twice the share of such tokens in the teacher's own texts. Less is not punished."""

WRITE_EVERY, KEEP = 40, 4
"""Steps from one batch of texts to the next, batches in use."""

WAYS = ((0.8, 1.0), (0.8, 0.9), (0.0, 1.0))
"""Temperature and top_p of one batch of texts after the other."""


@dataclass
class Texts:
    """Texts [B, L] the model wrote, and after which step each token was there."""

    tokens: Tensor
    written: Tensor
    steps: int


def copied(tokens: Tensor, source: Tensor) -> Tensor:
    """Return [B, L]: the tokens in a stretch that also stands where `source` [B, L] is True.

    >>> text = torch.tensor([[7, 8, 9, 10, 6, 7, 8, 9, 10]])
    >>> copied(text, torch.arange(9)[None] < 4).int().tolist()
    [[0, 0, 0, 0, 0, 1, 1, 1, 1]]
    """
    same = tokens[:, :, None] == tokens[:, None, :]
    same &= ~torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
    ends = same.clone()  # [B, i, j]: the stretch that ends at i is the stretch that ends at j
    ends[:, : STRETCH - 1] = False
    ends[:, :, : STRETCH - 1] = False
    for back in range(1, STRETCH):
        ends[:, back:, back:] &= same[:, :-back, :-back]
    inside = ends.clone()
    for back in range(1, STRETCH):
        inside[:, :-back, :-back] |= ends[:, back:, back:]
    return (inside & source[:, None, :]).any(-1)


def unlikelihood(
    model: nn.Module,
    texts: Texts,
    random: torch.Generator,
    *,
    mask: int = MASK,
    first: int = FIRST,
    natural: float = NATURAL,
) -> Tensor:
    """Return the mean of -log(1 - p) of the copies over all masked tokens, at a random step each.

    p is a share of the ordinary tokens alone, from `first` on: to end the text must not be the way
    out of a loop.
    Texts that repeat themselves no more than real ones have no copies.
    """
    tokens = texts.tokens
    when = torch.randint(texts.steps, (len(tokens), 1), generator=random, device=tokens.device)
    visible = texts.written <= when
    loops = copied(tokens, torch.ones_like(visible)).float().mean(1, keepdim=True) > natural
    copies = copied(tokens, visible) & ~visible & loops
    logits = model(torch.where(visible, tokens, mask))
    ordinary = logits[..., first:].float().log_softmax(-1)
    log_p = ordinary.gather(-1, (tokens - first).clamp(min=0)[..., None])[..., 0]
    losses = -torch.log1p(-log_p.exp().clamp(max=1 - 1e-5))
    return (losses * copies).sum() / (~visible).sum()


def unloop(tuning: Tuning) -> None:
    """Train for the given steps, logging what the model writes meanwhile."""
    kept: list[Texts] = []

    def fresh(step: int) -> Texts:
        number = step // WRITE_EVERY
        temperature, top_p = WAYS[number % len(WAYS)]
        sampler = Llada((LENGTH - PROMPT) // 2, BLOCK, temperature, top_p, suppress_end=True)
        tokens, written = tuning.write(sampler, number)
        shares = [repeated_ngrams(row) for row in tokens[:, PROMPT:].tolist()]
        repeated = sum(shares) / len(shares)
        tuning.note(step, temperature=temperature, top_p=top_p, repeated=repeated)
        return Texts(tokens, written, sampler.steps)

    for step in range(tuning.steps):
        if step % WRITE_EVERY == 0:
            kept = [*kept, fresh(step)][-KEEP:]
        with torch.autocast(tuning.device, torch.bfloat16, enabled=tuning.device == "cuda"):
            copies = unlikelihood(tuning.model, kept[step % len(kept)], tuning.random)
            loss = tuning.plain_loss() + copies
        tuning.learn(loss, min(1.0, 2 * (1 - step / tuning.steps)))
    tuning.finish()


if __name__ == "__main__":
    unloop(command_line(__doc__, steps=300, batch=128, rate=5e-4))
