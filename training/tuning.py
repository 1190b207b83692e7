"""Going on with a trained model on texts it writes itself: what unloop.py and polish.py share."""

from __future__ import annotations

import argparse
import json
import time
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dllmark import load_tokenizer
from dllmark.models.families import EMBEDDED
from dllmark.models.loading import Model
from dllmark.models.transformer import Config, Transformer
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

PROMPT, LENGTH, BLOCK = 32, 288, 32
"""Tokens of a prompt, tokens of a text with it, tokens of a block."""

TEXTS = 128
"""Texts written at a time."""


@torch.no_grad()
def write(
    pen: Model, prompts: Tensor, length: int, sampler: Llada, seed: int
) -> tuple[Tensor, Tensor]:
    """Return texts [B, L] that go on from prompts [B, P], and after which step each token came."""
    start = prompts.shape[1]
    tokens = torch.full((len(prompts), length), pen.mask_id, device=prompts.device)
    tokens[:, :start] = prompts
    revealed = torch.arange(length, device=prompts.device).expand(len(prompts), -1) < start
    canvas = Canvas(tokens, revealed.clone(), None, torch.zeros_like(revealed), start)
    written = torch.where(revealed, 0, sampler.steps + 1)
    generator = torch.Generator(prompts.device).manual_seed(seed)
    for step in denoise(pen, canvas, sampler, None, generator):
        written = torch.where(canvas.revealed, written.clamp(max=step), written)
    return canvas.tokens, written


def command_line(description: str | None, *, steps: int, batch: int, rate: float) -> Tuning:
    """Return a parsed command line, with these defaults, as a model in training."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("packed", type=Path)
    parser.add_argument("--start", type=Path, required=True, help="weights as export.py writes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--rate", type=float, default=rate)
    return Tuning(**vars(parser.parse_args()))


class Tuning:
    """A model in training, beside it the copy that writes, and a log beside the result."""

    def __init__(
        self, packed: Path, start: Path, out: Path, steps: int, batch: int, rate: float
    ) -> None:
        self.steps, self.rows = steps, batch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        self.tokenizer = load_tokenizer("embedded")
        config = Config(
            vocab_size=self.tokenizer.vocab_size, width=512, layers=9, heads=8, kv_heads=8,
            mlp_width=1408, max_length=1024, rope_theta=10_000.0, tied_head=True,
        )  # fmt: skip
        self.model = Transformer(config).to(self.device)
        load_exported(self.model, start)
        copy = deepcopy(self.model)
        if self.device == "cuda":
            copy.to(torch.bfloat16)
        self.pen = Model("training", EMBEDDED, copy, self.tokenizer, MASK, (1, 3), 0)
        self.rate, self.tuned = rate, optimizers(self.model, rate)
        self.corpora = {name: Corpus(packed, name, self.device) for name in SHARES}
        self.held_out = Corpus(packed, "teacher.held_out", self.device)
        self.random = torch.Generator(self.device).manual_seed(0)
        self.out, self.log = out, out.with_suffix(".jsonl").open("w")
        self.start = time.monotonic()

    def batch(self, rows: int, length: int) -> Tensor:
        """Return windows [rows, length] of all corpora."""
        parts = [self.corpora[name].windows(round(share * rows), length, self.random)
                 for name, share in SHARES.items()]  # fmt: skip
        found = torch.cat(parts)
        return found[torch.randperm(len(found), generator=self.random, device=self.device)]

    def write(self, sampler: Llada, seed: int) -> tuple[Tensor, Tensor]:
        """Return texts [B, L] that the model writes now, and after which step each token was there.

        They go on from beginnings of real texts, which were there after step 0.
        """
        self.pen.transformer.load_state_dict(self.model.state_dict())
        return write(self.pen, self.batch(TEXTS, PROMPT), LENGTH, sampler, seed)

    def plain_loss(self) -> Tensor:
        """Return the loss of ordinary training on a batch of windows."""
        tokens = self.batch(self.rows, 512)
        noisy, rates = corrupt(tokens, self.random, prefixes=CLEAN_PREFIX, lowest=0.02)
        return bound(self.model, tokens, noisy, rates)

    def learn(self, loss: Tensor, pace: float) -> None:
        """Take one step down the loss, at a share of the learning rate."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.tuned:
            for group in optimizer.param_groups:
                group["lr"] = self.rate * pace
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def note(self, step: int, **found: float) -> None:
        """Add a line to the log."""
        seconds = round(time.monotonic() - self.start, 1)
        print(json.dumps({"step": step, "seconds": seconds, **found}), file=self.log, flush=True)

    def finish(self) -> None:
        """Measure the bound and write the weights as export.py does."""
        self.note(self.steps, held_out=held_out_bound(self.model, self.held_out, 512))
        state, names = self.model.state_dict(), EMBEDDED.parameter_names(self.model.config)
        new = {theirs: state[ours].to(torch.bfloat16).cpu() for ours, theirs in names.items()}
        save_file(new, self.out, metadata={"format": "pt"})
