"""Teach a pretrained causal model to write by masked diffusion, as Dream was taught from Qwen.

Usage: python training/adapt.py packed/ --start model.gguf --tokenizer tokenizer.json --out run/

Attention looks both ways from the first step on, and the output at a position still predicts the
next token (Dream's shift), so that little of what the model knows is lost. Trains until `--total`
seconds are done in all runs together, at most `--seconds` of them now; the same command again goes
on from the checkpoint. Towards the end the weights are rounded to few bits in the loop. Writes
run/checkpoint.pt, run/log.jsonl and run/model, a folder that the Dream loader reads; a new run may
start from such a folder too. With `--rank` only adapters are learned, and kept in
run/adapter.safetensors; `--adapter` starts from such a file, and with `--total 0 --held-out 0` only
merges it into run/model.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lora
from dllmark.models.families import DREAM
from dllmark.models.loading import load_model
from dllmark.models.transformer import Transformer
from documents import CHAT, Rows
from masking import corrupt, spoil, weighed
from pretrained import export, numbers, weights
from quantise import in_few_bits

Counts = dict[int, dict[str, int]]

BATCH: Counts = {
    192: {"chats": 112, "teacher": 16},
    288: {"chats": 88, "teacher": 16, "wikipedia": 24, "standardebooks": 8},
    512: {"chats": 12, "wikipedia": 12, "standardebooks": 8, "usgov": 8},
}
"""Rows of each corpus in a step, by their length in tokens.

Few chats end within 192 tokens, half within 288, all within 512: the model must not take the end of
the canvas for the end of the text.
"""

HELD_OUT: Counts = {
    352: {"chats": 132, "teacher": 28},
    512: {"chats": 14, "wikipedia": 34, "standardebooks": 16, "usgov": 8},
}
"""The same for the rows that the bound is measured on. Most chats have less than 352 tokens."""

TAUGHT = ("chats", "teacher")
"""The corpora that the teacher wrote."""

ROWS = sum(sum(counts.values()) for counts in BATCH.values())

LOGITS_AT_ONCE = 1 << 31
"""A step of more logits, as of a large vocabulary, is taken in parts."""

CHECKED = 20
"""The first steps of a run, each of which must give numbers."""


class Reader:
    """A tokenizer, and what training must know of it."""

    def __init__(self, path: Path, device: str) -> None:
        self.definition = path.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(self.definition)
        self.mask, self.end = (tokenizer.token_to_id(name) for name in (DREAM.mask, DREAM.ends[0]))
        names = tokenizer.get_vocab(with_added_tokens=True)
        special = tokenizer.get_added_tokens_decoder()
        # a byte-level token stands for as many bytes as its name has signs
        widths = [0] * (math.ceil((max(names.values()) + 1) / 128) * 128)
        for name, id_ in names.items():
            widths[id_] = 0 if id_ in special else len(name)
        self.bytes = torch.tensor(widths, device=device)
        self.template = sum(widths[id_] for id_ in tokenizer.encode(CHAT.chat("")).ids)


class Data:
    """The packed corpora of a folder, those of them that are there.

    Of what the teacher wrote, texts of fewer than `shortest` tokens are left out.
    """

    def __init__(
        self, folder: Path, end: int, device: str, split: str = "", shortest: int = 0
    ) -> None:
        names = {name for counts in (*BATCH.values(), *HELD_OUT.values()) for name in counts}
        there = [name for name in names if (folder / f"{name}{split}.rows.npy").exists()]
        self.corpora = {
            name: Rows(folder, f"{name}{split}", end, device, shortest if name in TAUGHT else 0)
            for name in there
        }

    def draw(
        self, length: int, scale: float, random: torch.Generator, only: str | None = None,
        mix: Counts = BATCH,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return rows [N, length] and their sizes [N, 2], in the proportions of a step."""
        counts = {name: math.ceil(count * scale) for name, count in mix[length].items()}
        parts = [
            self.corpora[name].draw(count, length, random)
            for name, count in counts.items()
            if name in self.corpora and only in (None, name)
        ]
        return torch.cat([tokens for tokens, _ in parts]), torch.cat([sizes for _, sizes in parts])


@torch.no_grad()
def held_out(
    model: Transformer, data: Data, reader: Reader, *, only: str | None, clean: bool, rows: int
) -> dict[str, float]:
    """Return the bound on held-out text in nats a token and bits a byte.

    Always the same rows and masks. The ends of text that fill a row cost something too, and are
    counted as part of the last token. If `clean`, prompts are given and not counted.
    """
    device = model.embedding.weight.device
    random = torch.Generator(device).manual_seed(1)
    nats, tokens_seen, bytes_seen = 0.0, 0, 0
    scale = min(0.5, rows / sum(sum(counts.values()) for counts in HELD_OUT.values()))
    while rows > 0:
        for length in (352,) if only else HELD_OUT:
            tokens, sizes = data.draw(length, scale, random, only, HELD_OUT)
            size, prompt = sizes[:, :1], sizes[:, 1:]
            known = prompt if clean else torch.zeros_like(prompt)
            noisy, weight = corrupt(
                tokens, random, prefixes=0.0, lowest=1e-3, clean=known, mask=reader.mask
            )
            with autocast(device.type):
                nats += weighed(model(noisy), tokens, weight).item() * tokens.numel()
            place = torch.arange(length, device=device)
            counted = (place >= known) & (place < size)
            tokens_seen += int(counted.sum())
            bytes_seen += int((reader.bytes[tokens] * counted).sum())
            bytes_seen -= 0 if clean else reader.template * int((prompt > 0).sum())
            rows -= len(tokens)
    return {"nats": nats / tokens_seen, "bits": nats / math.log(2) / bytes_seen}


def autocast(device: str) -> AbstractContextManager[Any]:
    """Return bfloat16 arithmetic on a GPU, nothing on a CPU."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def flash(device: str) -> AbstractContextManager[Any]:
    """Return flash attention on a GPU: cuDNN's backward gave gradients that are no numbers."""
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION) if device == "cuda" else nullcontext()


def uncompiled(device: str) -> AbstractContextManager[Any]:
    """Return what runs compiled blocks as they are written, since measuring has other shapes."""
    return torch.compiler.set_stance("force_eager") if device == "cuda" else nullcontext()


def optimizer(model: Transformer, rate: float) -> torch.optim.Optimizer:
    """Return what moves the weights. Muon, tried at the same rate, was slower."""
    on_gpu = model.embedding.weight.is_cuda
    parameters = lora.learned(model).values()
    return torch.optim.AdamW(parameters, rate, betas=(0.9, 0.98), weight_decay=0.0, fused=on_gpu)


def move(tuned: torch.optim.Optimizer, model: Transformer, rate: float) -> None:
    """Take one step along the gradient, which is then forgotten."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in tuned.param_groups:
        group["lr"] = rate
    tuned.step()
    tuned.zero_grad(set_to_none=True)


def load(start: Path, reader: Reader, device: str) -> Transformer:
    """Return the model of a GGUF file with the tokens of the tokenizer, or that of a folder."""
    if start.is_dir():
        found = load_model(str(start), device=device, dtype="float32")
        return found.transformer.requires_grad_(True)
    config = numbers(start, len(reader.bytes))
    model = Transformer(config)
    model.load_state_dict(weights(start, config, reader.mask))
    return model.to(device)


def schedule(done: float) -> float:
    """Return the share of the learning rate: a short warm-up, a decay over the last 45 %."""
    return min(1.0, done / 0.01 + 0.01, (1 - done) / 0.45)


def compile_blocks(model: Transformer) -> None:
    """Compile the blocks, which are all alike: that takes seconds, the whole model minutes."""
    torch._dynamo.config.recompile_limit = 64  # first, last and other blocks, rows of each length
    for block in model.blocks:
        block.compile(dynamic=False)


class Run:
    """A model in training: its data, optimizers, log and checkpoint."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out, self.few = arguments.out, arguments.few_bits_from
        self.out.mkdir(parents=True, exist_ok=True)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        self.reader = Reader(arguments.tokenizer, self.device)
        self.model = load(arguments.start, self.reader, self.device)
        self.rank = arguments.rank
        if self.rank:
            lora.add(self.model, self.rank, self.reader.mask)
        if arguments.adapter:
            lora.load(self.model, arguments.adapter)
        self.rate, self.scale = arguments.rate, arguments.batch / ROWS
        self.tuned = optimizer(self.model, self.rate)
        self.step, self.seconds, self.tokens, self.rows = 0, 0.0, 0, arguments.held_out
        self.checkpoint = self.out / "checkpoint.pt"
        if self.checkpoint.exists():
            self.resume()
        self.data = Data(arguments.packed, self.reader.end, self.device)
        self.kept_back = Data(arguments.packed, self.reader.end, self.device, ".held_out")
        self.random = torch.Generator(self.device).manual_seed(self.step)
        self.weigh = weighed
        if self.device == "cuda":
            compile_blocks(self.model)
            self.weigh = torch.compile(weighed, dynamic=False)

    def rounding(self, done: float) -> AbstractContextManager[None]:
        """Return what puts the weights into few bits, if training has come so far."""
        return in_few_bits(self.model) if done >= self.few else nullcontext()

    def learn(self, done: float) -> Tensor:
        """Take one step at that share of all training; return its loss."""
        batches = [self.data.draw(length, self.scale, self.random) for length in BATCH]
        total = sum(tokens.numel() for tokens, _ in batches)
        losses = []
        with self.rounding(done):
            for tokens, sizes in batches:
                noisy, weight = spoil(tokens, sizes, self.random, self.reader.mask)
                parts = math.ceil(tokens.numel() * len(self.reader.bytes) / LOGITS_AT_ONCE)
                some = zip(*(one.chunk(parts) for one in (noisy, tokens, weight)), strict=True)
                losses += [self.loss(*part, total) for part in some]
        move(self.tuned, self.model, self.rate * schedule(done))
        self.step += 1
        self.tokens += total
        return torch.stack(losses).sum()

    def loss(self, noisy: Tensor, tokens: Tensor, weight: Tensor, total: int) -> Tensor:
        """Return the loss of some rows of a step of so many tokens; it is learned from."""
        with autocast(self.device):
            loss = self.weigh(self.model(noisy), tokens, weight)
            loss = loss * (tokens.numel() / total)
        loss.backward()
        return loss.detach()

    def bounds(self, rows: int) -> dict[str, dict[str, float]]:
        """Return the bound on held-out chats, on their answers given the questions, and on all."""
        parts = {"chats": ("chats", False), "answers": ("chats", True), "mixed": (None, False)}
        with uncompiled(self.device):
            return {
                name: held_out(
                    self.model, self.kept_back, self.reader, only=only, clean=clean, rows=rows
                )
                for name, (only, clean) in parts.items()
            }

    def note(self, *, show: bool = False, **found: Any) -> None:
        """Add a line to the log."""
        base = {"step": self.step, "seconds": round(self.seconds, 1), "tokens": self.tokens}
        line = json.dumps({**base, **found})
        with (self.out / "log.jsonl").open("a") as log:
            print(line, file=log)
        if show:
            print(line, flush=True)

    def save(self) -> None:
        """Write the checkpoint; a run that is cut short leaves the one before."""
        state = {
            "step": self.step, "seconds": self.seconds, "tokens": self.tokens,
            "model": lora.learned(self.model), "optimizer": self.tuned.state_dict(),
        }  # fmt: skip
        torch.save(state, self.checkpoint.with_suffix(".new"))
        self.checkpoint.with_suffix(".new").replace(self.checkpoint)

    def resume(self) -> None:
        """Go on from the checkpoint."""
        state = torch.load(self.checkpoint, map_location=self.device)
        self.model.load_state_dict(state["model"], strict=False)  # not what is frozen or tied
        self.tuned.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.tokens = (state[k] for k in ("step", "seconds", "tokens"))

    def finish(self, total: float) -> None:
        """Measure, save, and write the model as it is, and what few bits make of it."""
        if self.rows:
            self.note(show=True, held_out=self.bounds(self.rows))
        if self.rows and not self.rank:
            with in_few_bits(self.model):
                self.note(show=True, held_out_in_few_bits=self.bounds(self.rows))
        self.save()
        if self.rank:
            lora.save(self.model, self.out / "adapter.safetensors")
        reader = self.reader
        export(self.model, reader.definition, reader.mask, reader.end, self.out / "model")
        print("done" if self.seconds >= total else "to be continued", flush=True)


def train(run: Run, total: float, now: float, every: float) -> None:
    """Train until this run's seconds or all of them are used up; the checks come first."""
    before, start, first = run.seconds, None, run.step
    losses: list[Tensor] = []
    measured = saved = before
    while run.seconds < total and run.seconds - before < now:
        losses.append(run.learn(run.seconds / total))
        if start is None:  # compiling is not training
            losses[-1].item()
            start, tokens = time.monotonic(), run.tokens
        if run.step - first <= CHECKED or run.step % 50 == 0:
            if not math.isfinite(torch.stack(losses).mean().item()):
                raise SystemExit(f"the loss of step {run.step} is no number: stopped, not saved")
        elif run.step % 10 == 0:
            losses[-1].item()
        run.seconds = before + time.monotonic() - start
        if run.step % 50 == 0 or run.step - first == CHECKED:
            pace = (run.tokens - tokens) / (run.seconds - before)
            mean = torch.stack(losses).mean().item()
            losses.clear()
            run.note(show=run.step % 200 == 0 or run.step - first == CHECKED, loss=mean, pace=pace)
        if run.rows and run.seconds - measured >= every:
            measured, done = run.seconds, run.seconds / total
            named = "held_out_in_few_bits" if done >= run.few else "held_out"
            with run.rounding(done):
                run.note(show=True, **{named: run.bounds(run.rows // 2)})
        if run.seconds - saved >= 4 * every:
            saved = run.seconds
            run.save()
        start = time.monotonic() - (run.seconds - before)  # nor are measuring and saving
    run.finish(total)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packed", type=Path, help="folder that documents.py wrote")
    parser.add_argument("--start", type=Path, required=True, help="causal model.gguf, or a folder")
    parser.add_argument("--tokenizer", type=Path, required=True, help="as pretrained.py wrote it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of training in this run")
    parser.add_argument("--total", type=float, default=1000, help="seconds in all runs together")
    parser.add_argument("--every", type=float, default=100, help="seconds between measurements")
    parser.add_argument("--batch", type=int, default=ROWS, help="rows in a step")
    parser.add_argument("--held-out", type=int, default=2048, help="rows to measure the bound on")
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--rank", type=int, default=0, help="of adapters; 0 trains all weights")
    parser.add_argument("--adapter", type=Path, help="adapters to start from")
    parser.add_argument("--few-bits-from", type=float, default=2.0, help="share of the total")
    arguments = parser.parse_args()
    run = Run(arguments)
    with flash(run.device):
        train(run, arguments.total, arguments.seconds, arguments.every)


if __name__ == "__main__":
    main()
