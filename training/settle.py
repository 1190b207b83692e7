"""Teach an adapted model not to repeat itself, with its weights in few bits or by its adapters.

Usage: python training/settle.py packed/ --start run/model --out settled/ --seconds 150

A small diffusion model that writes its most certain token first falls into loops, because nothing
is as certain as a copy. Likelihood on good text cannot unlearn that: good text holds no loops.
Unlikelihood can (Welleck et al., 2020): the model writes texts of 512 tokens, and what it copied
from its own text becomes less likely in the very state it was chosen in, while training goes on
beside it. Writes a folder that the Dream loader reads, and log.jsonl and samples.jsonl in it. With
`--rank`, `--adapter` and the `--tokenizer` of a GGUF file to `--start` from, only the adapters
learn, and adapter.safetensors is written too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import lora
from adapt import (
    BATCH,
    ROWS,
    Data,
    Reader,
    autocast,
    compile_blocks,
    flash,
    held_out,
    load,
    move,
    optimizer,
    uncompiled,
)
from dllmark.models.families import DREAM
from dllmark.models.loading import Model
from dllmark.models.transformer import Transformer
from dllmark.quality.repetition import DEGENERATE, repeated_ngrams
from dllmark.relation.tokenizer import load_tokenizer
from dllmark.sampling.canvas import Canvas
from dllmark.sampling.loop import denoise
from dllmark.sampling.settings import Llada
from masking import spoil, weighed
from pretrained import export
from quantise import in_few_bits

STRETCH = 4
"""A token is copied when it is part of this many tokens in a row that stand elsewhere too."""

NATURAL = 0.3
"""Nine of ten real texts of 512 tokens have a smaller share of copied tokens. Less is no loop."""

PROMPT, LENGTH, BLOCK = 32, 512, 32
"""Tokens of a prompt, tokens of a text with it, tokens of a block."""

TEXTS, READ = 256, 64
"""Texts written at a time, and how many of them a step learns from, where a batch has ROWS rows."""

SAMPLES = 4
"""Texts of a batch that are kept to look at."""

WRITE_EVERY, KEEP = 20, 3
"""Steps from one batch of texts to the next, batches in use."""

WAYS = ((0.8, 2), (0.0, 1), (0.8, 4), (0.0, 2), (0.8, 1), (0.0, 1))
"""Temperature and tokens a step of one batch of texts after the other."""

AHEAD = 8
"""How many of the next tokens are learned from in a state."""


@dataclass
class Texts:
    """Texts [B, L] the model wrote, and after which step each token was there."""

    tokens: Tensor
    written: Tensor
    steps: int


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


def loss_of_copies(
    model: Transformer, texts: Texts, random: torch.Generator, mask: int, ordinary: Tensor
) -> Tensor:
    """Return the mean of -log(1 - p) of the copies over the next tokens, at a random step each.

    p is a share of the `ordinary` [V] tokens alone: to end must not be the way out of a loop.
    Texts that repeat themselves no more than real ones have no copies but doubled words, which two
    neighbours become that are chosen together; the less likely of the two is the copy.
    """
    tokens = texts.tokens
    when = torch.randint(texts.steps, (len(tokens), 1), generator=random, device=tokens.device)
    visible = texts.written <= when
    steps = max(1, AHEAD * texts.steps // tokens.shape[1])
    coming = ~visible & (texts.written <= when + steps) & ordinary[tokens]
    loops = copied(tokens, torch.ones_like(visible)).float().mean(1, keepdim=True) > NATURAL
    logits = model(torch.where(visible, tokens, mask))[coming].float()
    log_p = logits.masked_fill(~ordinary, -torch.inf).log_softmax(-1)
    said = torch.zeros(tokens.shape, device=tokens.device)
    said[coming] = log_p.gather(-1, tokens[coming][:, None])[:, 0]
    copies = copied(tokens, visible) & loops | doubled(tokens, coming, said.detach())
    losses = -torch.log1p(-said.exp().clamp(max=1 - 1e-4)) * copies
    return losses[coming].mean()


def doubled(tokens: Tensor, coming: Tensor, said: Tensor) -> Tensor:
    """Return [B, L]: of two equal neighbours that are both to come, the one less likely said.

    >>> tokens = torch.tensor([[20, 20, 30, 20]])
    >>> doubled(tokens, torch.ones(1, 4, dtype=torch.bool), torch.tensor([[-1.0, -2.0, 0.0, 0.0]]))
    tensor([[False,  True, False, False]])
    """
    twice = (tokens[:, 1:] == tokens[:, :-1]) & coming[:, 1:] & coming[:, :-1]
    second = said[:, 1:] <= said[:, :-1]
    found = torch.zeros_like(coming)
    found[:, 1:] |= twice & second
    found[:, :-1] |= twice & ~second
    return found


class Settling:
    """A model in training, and beside it the copy that writes."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        tokenizer = arguments.tokenizer or arguments.start / "tokenizer.json"
        self.reader = Reader(tokenizer, self.device)
        self.ordinary = self.reader.bytes > 0
        self.model, self.rank = load(arguments.start, self.reader, self.device), arguments.rank
        copy = Transformer(self.model.config).to(self.device)
        if self.rank:
            lora.add(self.model, self.rank, self.reader.mask)
        if arguments.adapter:
            lora.load(self.model, arguments.adapter)
        if self.device == "cuda":
            copy.to(torch.bfloat16)
            if not self.rank:  # of a large model, so few steps are over before compiling is
                compile_blocks(self.model)
        special = tuple((~self.ordinary).nonzero()[:, 0].tolist())
        self.pen = Model("pen", DREAM, copy, load_tokenizer(str(tokenizer)), self.reader.mask,
                         special, self.reader.end)  # fmt: skip
        self.data = Data(
            arguments.packed, self.reader.end, self.device, shortest=arguments.shortest
        )
        self.kept_back = Data(arguments.packed, self.reader.end, self.device, ".held_out")
        self.random = torch.Generator(self.device).manual_seed(0)
        self.rate, self.scale = arguments.rate, arguments.batch / ROWS
        self.read = max(1, round(READ * self.scale))
        self.tuned = optimizer(self.model, self.rate)
        self.out, self.weight = arguments.out, arguments.weight
        self.out.mkdir(parents=True, exist_ok=True)
        self.texts: deque[Texts] = deque(maxlen=KEEP)
        self.step, self.start = 0, time.monotonic()

    def write(self) -> None:
        """Let the model write a batch of texts, as it will be in few bits."""
        number = self.step // WRITE_EVERY
        temperature, pace = WAYS[number % len(WAYS)]
        with self.rounding():
            self.pen.transformer.load_state_dict(lora.merged(self.model))
        scale = self.scale * TEXTS / ROWS if self.device == "cuda" else 0.01
        prompts = torch.cat([self.data.draw(length, scale, self.random)[0][:, :PROMPT]
                             for length in BATCH])  # fmt: skip
        sampler = Llada((LENGTH - PROMPT) // pace, BLOCK, temperature, suppress_end=True,
                        cache="block")  # fmt: skip
        tokens, written = write(self.pen, prompts, LENGTH, sampler, number)
        self.texts.append(Texts(tokens, written, sampler.steps))
        with (self.out / "samples.jsonl").open("a", encoding="utf-8") as file:
            for ids in tokens[:SAMPLES].tolist():
                text = self.pen.tokenizer.decode(ids)
                print(json.dumps({"step": self.step, "text": text}, ensure_ascii=False), file=file)
        shares = [repeated_ngrams(row, 4) for row in tokens[:, PROMPT:].tolist()]
        degenerate = sum(share > DEGENERATE for share in shares) / len(shares)
        self.note(
            temperature=temperature, tokens_a_step=pace, repeated=sum(shares) / len(shares),
            degenerate=degenerate,
        )  # fmt: skip

    def losses(self) -> tuple[Tensor, Tensor]:
        """Return the loss of ordinary training, and that of what was copied; both are learned."""
        length = list(BATCH)[self.step % len(BATCH)]
        tokens, sizes = self.data.draw(length, self.scale, self.random)
        noisy, weight = spoil(tokens, sizes, self.random, self.reader.mask)
        with autocast(self.device):
            plain = weighed(self.model(noisy), tokens, weight)
        plain.backward()
        texts = self.texts[self.step % len(self.texts)]
        rows = torch.randperm(len(texts.tokens), generator=self.random, device=self.device)[
            : self.read
        ]
        some = Texts(texts.tokens[rows], texts.written[rows], texts.steps)
        with autocast(self.device):
            copies = loss_of_copies(self.model, some, self.random, self.reader.mask, self.ordinary)
        (self.weight * copies).backward()
        return plain.detach(), copies.detach()

    def learn(self, done: float) -> tuple[Tensor, Tensor]:
        """Take one step at that share of the time."""
        with self.rounding():
            found = self.losses()
        pace = min(1.0, (self.step + 1) / 20, 2 * (1 - done))
        move(self.tuned, self.model, self.rate * pace)
        self.step += 1
        return found

    def rounding(self) -> AbstractContextManager[None]:
        """Return what puts the weights into few bits, unless adapters learn."""
        return nullcontext() if self.rank else in_few_bits(self.model)

    def note(self, **found: object) -> None:
        """Add a line to the log."""
        seconds = round(time.monotonic() - self.start, 1)
        line = json.dumps({"step": self.step, "seconds": seconds, **found})
        with (self.out / "log.jsonl").open("a") as log:
            print(line, file=log)
        print(line, flush=True)

    def finish(self) -> None:
        """Measure the bound, in few bits unless adapters learned, and write the exact weights."""
        with uncompiled(self.device), self.rounding():
            for name, only in (("chats", "chats"), ("mixed", None)):
                found = held_out(self.model, self.kept_back, self.reader, only=only, clean=False,
                                 rows=2048 if self.device == "cuda" else 2)  # fmt: skip
                self.note(few_bits=not self.rank, name=name, **found)
        if self.rank:
            lora.save(self.model, self.out / "adapter.safetensors")
        reader = self.reader
        export(self.model, reader.definition, reader.mask, reader.end, self.out)


def settle(run: Settling, seconds: float) -> None:
    """Train for so many seconds, writing included; the first steps compile, and do not count."""
    with flash(run.device):
        run.write()
        for _ in BATCH:
            run.learn(0.0)
    run.start = time.monotonic()
    while (done := (time.monotonic() - run.start) / seconds) < 1:
        if run.step % WRITE_EVERY == 0:
            run.write()
        with flash(run.device):
            plain, copies = run.learn(done)
        if run.step % 10 == 0:
            run.note(loss=plain.item(), copies=copies.item())
            if not plain.isfinite():
                raise SystemExit("the loss is no number: stopped, nothing written")
    with flash(run.device):
        run.finish()


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packed", type=Path)
    parser.add_argument(
        "--start", type=Path, required=True, help="folder of adapt.py, or GGUF file"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=0, help="of adapters; 0 trains all weights")
    parser.add_argument("--adapter", type=Path, help="adapters to start from")
    parser.add_argument("--tokenizer", type=Path, help="if not that of the folder")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--batch", type=int, default=ROWS)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--shortest", type=int, default=0, help="tokens of a chat's answer")
    parser.add_argument("--weight", type=float, default=0.3, help="of the loss of copies")
    arguments = parser.parse_args()
    settle(Settling(arguments), arguments.seconds)


if __name__ == "__main__":
    main()
