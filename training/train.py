"""Train the embedded model: masked diffusion, from scratch, resumable.

Usage: python training/train.py packed/ --out run/ --total 1200 --seconds 560

Trains until `--total` seconds of training are done in all runs together, at most `--seconds` of
them now; the same command again goes on from the checkpoint. The learning rate follows the share
of the total that is done. Writes run/checkpoint.pt and a line of run/log.jsonl every 50 steps.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dllmark.models.families import EMBEDDED
from dllmark.models.transformer import Config, Transformer

MASK = 2
SHARES = {"teacher": 0.82, "wikipedia": 0.1, "standardebooks": 0.05, "usgov": 0.03}
"""How much of a batch comes from each corpus."""

CLEAN_PREFIX = 0.3
"""The share of windows whose beginning is never masked, as a prompt is not."""


class Corpus:
    """The packed ids of one corpus, on the training device."""

    def __init__(self, folder: Path, name: str, device: str) -> None:
        tokens = np.load(folder / f"{name}.tokens.npy").astype(np.int32)
        self.tokens = torch.from_numpy(tokens).to(device)
        self.starts = torch.from_numpy(np.load(folder / f"{name}.starts.npy")).to(device)

    def windows(self, count: int, length: int, random: torch.Generator) -> Tensor:
        """Return [count, length] ids, each row from a place where a window may start."""
        chosen = torch.randint(len(self.starts), (count,), generator=random, device=random.device)
        starts = self.starts[chosen].clamp(max=len(self.tokens) - length)
        span = torch.arange(length, device=random.device)
        return self.tokens[starts[:, None] + span].long()


def corrupt(
    tokens: Tensor,
    random: torch.Generator,
    *,
    prefixes: float,
    lowest: float,
    clean: Tensor | int = 0,
    mask: int = MASK,
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


def bound(model: nn.Module, tokens: Tensor, noisy: Tensor, weights: Tensor) -> Tensor:
    """Return the mean negative evidence bound, in nats a token."""
    return weighed(model(noisy), tokens, weights)


@torch.no_grad()
def held_out_bound(model: nn.Module, corpus: Corpus, length: int, rows: int = 2048) -> float:
    """Return the bound on held-out windows, the same windows and masks at every call."""
    random = torch.Generator(corpus.tokens.device).manual_seed(1)
    total = 0.0
    for _ in range(rows // 128):
        tokens = corpus.windows(128, length, random)
        noisy, weights = corrupt(tokens, random, prefixes=0.0, lowest=1e-3)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            total += bound(model, tokens, noisy, weights).item()
    return total / (rows // 128)


def initialise(model: Transformer) -> None:
    """Start small, and smaller where a block adds to the stream."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            adds = name.endswith(("attention.out.weight", "down.weight"))
            scale = 0.02 / math.sqrt(2 * model.config.layers) if adds else 0.02
            nn.init.normal_(parameter, std=scale)


def load_exported(model: Transformer, path: Path) -> None:
    """Load weights as export.py writes them."""
    weights, names = load_file(path), EMBEDDED.parameter_names(model.config)
    given = {ours: weights[theirs].float() for ours, theirs in names.items()}
    model.load_state_dict(given, strict=False)  # a tied head is loaded with the embedding


def optimizers(model: Transformer, rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the blocks' matrices and AdamW for everything else."""
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def schedule(done: float) -> float:
    """Return the share of the learning rate: a short warm-up, a decay over the last 45 %."""
    return min(1.0, done / 0.01 + 0.01, (1 - done) / 0.45)


def train(arguments: argparse.Namespace) -> None:
    """Train until this run's time or all of the time is used up, then save."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    config = Config(
        vocab_size=16_384, width=arguments.width, layers=arguments.layers,
        heads=arguments.width // 64, kv_heads=arguments.width // 64,
        mlp_width=arguments.mlp, max_length=1024, rope_theta=10_000.0, tied_head=True,
    )  # fmt: skip
    model = Transformer(config).to(device)
    initialise(model)
    tuned = optimizers(model, arguments.rate)
    state: dict[str, Any] = {"step": 0, "seconds": 0.0}
    checkpoint = arguments.out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(tuned, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
    elif arguments.start:
        load_exported(model, arguments.start)
    step, before = state["step"], state["seconds"]
    there = [name for name in SHARES if (arguments.packed / f"{name}.tokens.npy").exists()]
    corpora = {name: Corpus(arguments.packed, name, device) for name in there}
    held_out = Corpus(arguments.packed, "teacher.held_out", device)
    shares = {name: SHARES[name] / sum(SHARES[other] for other in there) for name in there}
    counts = {name: round(share * arguments.batch) for name, share in shares.items()}
    random = torch.Generator(device).manual_seed(step)
    loss_of = torch.compile(bound) if device == "cuda" else bound
    log = (arguments.out / "log.jsonl").open("a")

    def one_step(done: float) -> Tensor:
        parts = [corpora[name].windows(count, arguments.length, random)
                 for name, count in counts.items() if count]  # fmt: skip
        tokens = torch.cat(parts)
        noisy, weights = corrupt(tokens, random, prefixes=CLEAN_PREFIX, lowest=0.02)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss: Tensor = loss_of(model, tokens, noisy, weights)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in tuned:
            for group in optimizer.param_groups:
                group["lr"] = arguments.rate * schedule(done)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    start = None
    seconds, losses = before, []
    while seconds < arguments.total and seconds - before < arguments.seconds:
        losses.append(one_step(seconds / arguments.total))
        step += 1
        if start is None:  # compiling is not training
            losses[-1].item()
            start = time.monotonic()
        if step % 10 == 0:
            losses[-1].item()
        seconds = before + time.monotonic() - start
        if step % 50 == 0:
            record = {"step": step, "seconds": round(seconds, 1),
                      "loss": torch.stack(losses).mean().item()}  # fmt: skip
            losses = []
            if step % 1000 == 0:
                record["held_out"] = held_out_bound(model, held_out, arguments.length)
            log.write(json.dumps(record) + "\n")
            log.flush()
            if step % 500 == 0:
                print(record, flush=True)
    final = {length: held_out_bound(model, held_out, length) for length in (320, arguments.length)}
    log.write(json.dumps({"step": step, "seconds": seconds, "held_out": final}) + "\n")
    print(f"step {step}, {seconds:.0f} s: held-out bound by window length {final}", flush=True)
    torch.save(
        {"config": asdict(config), "step": step, "seconds": seconds, "model": model.state_dict(),
         "optimizers": [optimizer.state_dict() for optimizer in tuned]},
        checkpoint,
    )  # fmt: skip


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packed", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="weights to start from, as export.py writes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of training in this run")
    parser.add_argument("--total", type=float, default=1500, help="seconds in all runs together")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--mlp", type=int, default=1408)
    parser.add_argument("--rate", type=float, default=2e-3)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    train(arguments)


if __name__ == "__main__":
    main()
