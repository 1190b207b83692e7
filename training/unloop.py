"""Teach a trained model not to repeat itself: unlikelihood of what it copies from its own texts.

Usage: python training/unloop.py packed/ --start model.safetensors --out unlooped.safetensors

A small diffusion model that always writes its most certain token falls into loops, because nothing
is as certain as a copy. Likelihood on good text cannot unlearn that: good text holds no loops.
Unlikelihood can (Welleck et al., 2020): let the model write, find the tokens it copied, and lower
their probability in the very state it chose them in. The training loss goes on beside it. Writes
the weights, and beside them a log. `mix.py` then finds a place between the old and the new weights.
"""

from __future__ import annotations

import argparse
import json
import time
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dllmark import load_tokenizer
from dllmark.models.families import EMBEDDED
from dllmark.models.loading import Model
from dllmark.models.transformer import Config, Transformer
from dllmark.quality.repetition import repeated_ngrams
from dllmark.sampling.loop import Canvas, denoise
from dllmark.sampling.settings import Llada
from train import (
    CLEAN_PREFIX,
    MASK,
    SHARES,
    Corpus,
    bound,
    corrupt,
    held_out_bound,
    load_exported,
    optimizers,
)

FIRST = 5
"""The first ordinary token of the embedded tokenizer."""

STRETCH = 4
"""A token is copied when it is part of this many tokens in a row that stand elsewhere too."""

NATURAL = 0.1
"""Twice the share of such tokens in the teacher's own texts. Less is not punished."""

PROMPT, LENGTH, BLOCK = 32, 288, 32
"""Tokens of a prompt, tokens of a text with it, tokens of a block."""

TEXTS, WRITE_EVERY, KEEP = 128, 40, 4
"""Texts written at a time, steps from one batch of texts to the next, batches in use."""

WAYS = ((0.8, 1.0), (0.8, 0.9), (0.0, 1.0))
"""Temperature and top_p of one batch of texts after the other."""


@dataclass
class Texts:
    """Texts [B, L] the model wrote, and after which step each token was there."""

    tokens: Tensor
    written: Tensor
    steps: int


@torch.no_grad()
def write(model: Model, prompts: Tensor, number: int) -> Texts:
    """Continue prompts [B, P] in LLaDA's order, two tokens a step, without an end."""
    rows, start = prompts.shape
    device = prompts.device
    tokens = torch.full((rows, LENGTH), model.mask_id, device=device)
    tokens[:, :start] = prompts
    revealed = torch.arange(LENGTH, device=device).expand(rows, -1) < start
    canvas = Canvas(tokens, revealed.clone(), None, torch.zeros_like(revealed), start)
    temperature, top_p = WAYS[number % len(WAYS)]
    sampler = Llada((LENGTH - start) // 2, BLOCK, temperature, top_p, suppress_end=True)
    written = torch.where(revealed, 0, sampler.steps + 1)
    generator = torch.Generator(device).manual_seed(number)
    for step in denoise(model, canvas, sampler, None, generator):
        written = torch.where(canvas.revealed, written.clamp(max=step), written)
    return Texts(canvas.tokens, written, sampler.steps)


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


def unlikelihood(model: nn.Module, texts: Texts, random: torch.Generator) -> Tensor:
    """Return the mean of -log(1 - p) of the copies over all masked tokens, at a random step each.

    p is a share of the ordinary tokens alone: to end the text must not be the way out of a loop.
    Texts that repeat themselves no more than real ones have no copies.
    """
    tokens = texts.tokens
    when = torch.randint(texts.steps, (len(tokens), 1), generator=random, device=tokens.device)
    visible = texts.written <= when
    loops = copied(tokens, torch.ones_like(visible)).float().mean(1, keepdim=True) > NATURAL
    copies = copied(tokens, visible) & ~visible & loops
    logits = model(torch.where(visible, tokens, MASK))
    ordinary = logits[..., FIRST:].float().log_softmax(-1)
    log_p = ordinary.gather(-1, (tokens - FIRST).clamp(min=0)[..., None])[..., 0]
    losses = -torch.log1p(-log_p.exp().clamp(max=1 - 1e-5))
    return (losses * copies).sum() / (~visible).sum()


def unloop(arguments: argparse.Namespace) -> None:
    """Train for the given steps, logging what the model writes meanwhile."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    tokenizer = load_tokenizer("embedded")
    config = Config(
        vocab_size=tokenizer.vocab_size, width=512, layers=9, heads=8, kv_heads=8, mlp_width=1408,
        max_length=1024, rope_theta=10_000.0, tied_head=True,
    )  # fmt: skip
    model = Transformer(config).to(device)
    load_exported(model, arguments.start)
    pen = Model("training", EMBEDDED, deepcopy(model), tokenizer, MASK, (1,), 0)
    if device == "cuda":
        pen.transformer.to(torch.bfloat16)
    tuned = optimizers(model, arguments.rate)
    corpora = {name: Corpus(arguments.packed, name, device) for name in SHARES}
    random = torch.Generator(device).manual_seed(0)
    kept: list[Texts] = []
    log = arguments.out.with_suffix(".jsonl").open("w")

    def batch(rows: int, length: int) -> Tensor:
        parts = [corpora[name].windows(round(share * rows), length, random)
                 for name, share in SHARES.items()]  # fmt: skip
        found = torch.cat(parts)
        return found[torch.randperm(len(found), generator=random, device=device)]

    def note(step: int, **found: float) -> None:
        seconds = round(time.monotonic() - start, 1)
        print(json.dumps({"step": step, "seconds": seconds, **found}), file=log, flush=True)

    start = time.monotonic()
    for step in range(arguments.steps):
        if step % WRITE_EVERY == 0:
            pen.transformer.load_state_dict(model.state_dict())
            number = step // WRITE_EVERY
            kept = [*kept, write(pen, batch(TEXTS, PROMPT), number)][-KEEP:]
            shares = [repeated_ngrams(row) for row in kept[-1].tokens[:, PROMPT:].tolist()]
            temperature, top_p = WAYS[number % len(WAYS)]
            note(step, temperature=temperature, top_p=top_p, repeated=sum(shares) / len(shares))
        tokens = batch(arguments.batch, 512)
        noisy, rates = corrupt(tokens, random, prefixes=CLEAN_PREFIX, lowest=0.02)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = bound(model, tokens, noisy, rates)
            loss = loss + arguments.weight * unlikelihood(model, kept[step % len(kept)], random)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in tuned:
            for group in optimizer.param_groups:
                group["lr"] = arguments.rate * min(1.0, 2 * (1 - step / arguments.steps))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    found = held_out_bound(model, Corpus(arguments.packed, "teacher.held_out", device), 512)
    note(arguments.steps, held_out=found)
    state, names = model.state_dict(), EMBEDDED.parameter_names(config)
    new = {theirs: state[ours].to(torch.bfloat16).cpu() for ours, theirs in names.items()}
    save_file(new, arguments.out, metadata={"format": "pt"})


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packed", type=Path)
    parser.add_argument("--start", type=Path, required=True, help="weights as export.py writes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--weight", type=float, default=1.0, help="of the unlikelihood")
    unloop(parser.parse_args())


if __name__ == "__main__":
    main()
