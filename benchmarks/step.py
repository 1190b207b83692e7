"""What a denoising step of an 8B diffusion model costs, and what the watermark adds to it.

Usage: python benchmarks/step.py [--models llada dream] [--batches 1 8 32]
                                 [--strategies joint adaptive-joint] [--out DIR]
       python benchmarks/step.py --draw DIR

Builds models of the exact shapes of LLaDA-8B and Dream-7B with random weights and measures, in one
run: the forward pass, in torch alone and with our kernels; the official step of LLaDA, in torch
alone; the reference implementation's watermark; our step without and with each strategy's
watermark, and that watermark alone; the peak memory of each; the floors of the machine; and how
fast pairs are coloured. A step is a real one, in the middle of writing 256 tokens after a prompt of
30, one token a step, at temperature 0; with `joint` and `adaptive-joint` at 0.8, where one without
a mark is also measured.

Without a GPU it measures models a thousand times smaller, which shows only that it runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hardware import describe
from official import official_step, reference_bias
from shapes import BLOCK, PROMPT, TOKENS, build, canvas_of, flops, weight_bytes
from step_report import page, report
from torch import Tensor

from dllmark import HashedGreenList, WatermarkKey, load_tokenizer
from dllmark.marking.strategies import STRATEGIES
from dllmark.marking.watermark import Watermark
from dllmark.models.loading import Model
from dllmark.models.transformer import unfused
from dllmark.sampling.canvas import Canvas
from dllmark.sampling.denoiser import Denoiser
from dllmark.sampling.loop import make_denoiser
from dllmark.sampling.settings import Llada

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
FIRST = PROMPT + 4 * BLOCK
"""Where the block that is measured begins: the fifth of eight."""

SAMPLER, WARM = (Llada(TOKENS, BLOCK, temperature=temperature) for temperature in (0, 0.8))
WARM_UP, TURNS = 4, 6
Row = dict[str, float]


def now() -> Any:
    """Return a mark in the GPU's stream of work, or the time."""
    if not CUDA:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def held() -> int:
    """Return the bytes of GPU memory that are in use."""
    gc.collect()
    return torch.cuda.memory_allocated() if CUDA else 0


def spans(work: Callable[[int], object], times: range) -> list[float]:
    """Return the milliseconds of each of some runs."""
    if CUDA:
        torch.cuda.synchronize()
    marks = [now()]
    for number in times:
        work(number)
        marks.append(now())
    if not CUDA:
        return [1e3 * (after - before) for before, after in pairwise(marks)]
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(marks)]


def measure_in_turn(works: dict[str, Callable[[int], object]], times: int) -> dict[str, Row]:
    """Return each work's median milliseconds, and the most memory it held beside.

    They take turns, so that a GPU which grows warm and slow is so for all of them. Each turn begins
    with another: what comes after an idle GPU is faster.
    """
    rows: dict[str, Row] = {}
    for name, work in works.items():
        before = held()
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        spans(work, range(WARM_UP))
        most = torch.cuda.max_memory_allocated() if CUDA else before
        rows[name] = {"peak MB": (most - before) / 1e6}
    found: dict[str, list[float]] = {name: [] for name in works}
    each, names = -(-times // TURNS), list(works)
    for turn, first in enumerate(range(WARM_UP, WARM_UP + times, each)):
        begin = turn * len(names) // TURNS
        for name in names[begin:] + names[:begin]:
            found[name] += spans(works[name], range(first, first + each))
    for name, row in rows.items():
        row["ms"] = statistics.median(found[name])
    return rows


def measure(work: Callable[[int], object], times: int) -> Row:
    """Return the median milliseconds of a piece of work, and the most memory it held beside."""
    return measure_in_turn({"work": work}, times)["work"]


def mask_again(model: Model, canvas: Canvas) -> None:
    """Take back what was revealed, so that the block can be written once more."""
    canvas.tokens[:, FIRST:] = model.mask_id
    canvas.revealed[:, FIRST:] = False


def our_step(
    model: Model, batch: int, watermark: Watermark | None, sampler: Llada = SAMPLER
) -> Callable[[int], None]:
    """Return a function that does one step of our sampler."""
    canvas = canvas_of(model, batch, FIRST)
    random = torch.Generator(DEVICE).manual_seed(0)
    denoiser = make_denoiser(model, canvas, sampler, watermark, random)
    count = torch.ones(batch, dtype=torch.long, device=DEVICE)
    block = range(FIRST, FIRST + BLOCK)

    def work(number: int) -> None:
        if number % BLOCK == 0:
            mask_again(model, canvas)
        denoiser.reveal(block, count, most=1, fresh=False)

    return work


def forward(model: Model, tokens: Tensor) -> Callable[[int], Tensor]:
    """Return a function that computes all logits by torch's own operations."""

    def work(_: int) -> Tensor:
        with unfused():
            logits: Tensor = model.transformer(tokens)
        return logits

    return work


def official(model: Model, batch: int) -> Callable[[int], None]:
    """Return a function that does one step of the official sampler."""
    canvas = canvas_of(model, batch, FIRST)

    def work(number: int) -> None:
        if number % BLOCK == 0:
            mask_again(model, canvas)
        official_step(model, canvas.tokens, FIRST + BLOCK, 1)

    return work


def bias_alone(model: Model, batch: int, watermark: Watermark, *, worst: bool) -> Row:
    """Return what only biasing takes: the mean over the 32 steps of a block, or the worst of them.

    A block is filled in a random order, so a neighbour is revealed half of the time; in the worst
    step none is. Each prediction has eight tokens of the same probability, so that all count.
    """
    canvas = canvas_of(model, batch, PROMPT + TOKENS)
    canvas.revealed[:, FIRST:] = False
    random = torch.Generator(DEVICE)
    denoiser = Denoiser(model, canvas, SAMPLER, watermark, random)
    denoiser.first.fill_(FIRST)
    covered = torch.arange(FIRST, FIRST + BLOCK + 1, device=DEVICE).repeat(batch, 1)
    logits = torch.randn(*covered.shape, model.config.vocab_size, device=DEVICE)
    logits[..., :: logits.shape[-1] // 8] = 20.0
    order = FIRST + torch.tensor(np.random.default_rng(0).permutation(BLOCK), device=DEVICE)
    states = []
    for number in range(BLOCK):
        revealed = canvas.revealed.clone()
        revealed[:, order[: 0 if worst else number]] = True
        position = order.new_tensor(FIRST + BLOCK // 2) if worst else order[number]
        masked = torch.where(revealed[:, FIRST : FIRST + BLOCK], -1, covered[:, :BLOCK])
        states.append((revealed, masked, position.expand(batch, 1)))

    def work(_: int) -> None:
        for revealed, masked, position in states:
            canvas.revealed = revealed
            if watermark.strategy.biases_order:
                denoiser.apply_bias(masked, logits, None, covered)
            denoiser.apply_bias(position, logits, None, covered)

    if CUDA:
        work(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work(0)
    found = measure((lambda _: graph.replay()) if CUDA else work, 24 if CUDA else 6)
    return {"ms": found["ms"] / BLOCK, "peak MB": found["peak MB"]}


def measure_batch(
    model: Model, batch: int, marks: list[Watermark], matrix: Tensor, times: int
) -> Any:
    """Measure everything at one batch size."""
    canvas = canvas_of(model, batch, FIRST)
    size = model.config.vocab_size
    logits = torch.randn(batch, size, device=DEVICE)
    ids = torch.randint(size, (2, batch, 256)).tolist()
    works: dict[str, Callable[[int], object]] = {
        "forward": forward(model, canvas.tokens),
        "forward, fused": lambda _: model.transformer(canvas.tokens),
        "official step": official(model, batch),
        "reference watermark": lambda n: reference_bias(
            matrix, logits, [row[n] for row in ids[0]], [row[n] for row in ids[1]], 2.0
        ),
        "our step": our_step(model, batch, None),
        "our step at 0.8": our_step(model, batch, None, WARM),
    }
    alone = {}
    for watermark in marks:
        name = watermark.strategy.name
        if watermark.strategy.joint:
            works[f"our step at 0.8, {name}"] = our_step(model, batch, watermark, WARM)
            continue
        before = held()
        alone[name] = bias_alone(model, batch, watermark, worst=False)
        alone[name]["worst ms"] = bias_alone(model, batch, watermark, worst=True)["ms"]
        alone[name]["kept MB"] = (held() - before) / 1e6
        works[f"our step, {name}"] = our_step(model, batch, watermark)
    steps = measure_in_turn(works, times)
    return {"steps": steps, "watermark alone": alone}


def machine() -> Row:
    """Return what the machine can do: bytes copied and bfloat16 operations in a second."""
    size = 8192 if CUDA else 256
    dtype = torch.bfloat16 if CUDA else torch.float32
    a, b = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
    product = measure(lambda _: a @ b, 21)["ms"] / 1e3
    source = torch.empty((1 << 32) if CUDA else (1 << 24), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    copy = measure(lambda _: target.copy_(source), 21)["ms"] / 1e3
    return {"flops": 2 * size**3 / product, "bytes": 2 * len(source) / copy}


def colouring() -> Row:
    """Return pairs coloured in a second, on this device and on the CPU with numpy."""
    key = WatermarkKey.generate(load_tokenizer("embedded").id)
    green, count = HashedGreenList(key, 126_464), 100_000_000 if CUDA else 1_000_000
    ids = torch.randint(126_464, (count + 1,), device=DEVICE)
    part = 1 << 24

    def work(_: int) -> None:
        for start in range(0, count, part):
            stop = min(start + part, count)
            green.pairs(ids[start:stop], ids[start + 1 : stop + 1])

    host = ids[:1_000_001].cpu().numpy()
    host_ms = measure(lambda _: green.pairs(host[:-1], host[1:]), 6)["ms"]
    return {
        "pairs": count,
        f"{DEVICE}, pairs a second": 1e3 * count / measure(work, 3)["ms"],
        "numpy on the CPU, pairs a second": 1e9 / host_ms,
    }


def measure_model(name: str, batches: list[int], strategies: list[str]) -> Any:
    """Build one model and measure it at every batch size."""
    model = build(name, DEVICE)
    key = WatermarkKey.generate(model.tokenizer.id)
    size = model.config.vocab_size
    matrix = torch.empty(size, size, dtype=torch.bool, pin_memory=CUDA)
    found: dict[str, Any] = {"weights MB": weight_bytes(model) / 1e6, "batches": {}}
    for batch in batches:
        times = max(12, 192 // batch) if CUDA else TURNS
        marks = [Watermark(key, one, tokenizer=model.tokenizer) for one in strategies]
        row = measure_batch(model, batch, marks, matrix, times)
        row["operations"] = flops(model, batch, BLOCK + 1)
        found["batches"][str(batch)] = row
        print(name, "batch", batch, {k: round(v["ms"], 3) for k, v in row["steps"].items()})
    return found


def main() -> None:
    """Parse the command line, measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["llada", "dream"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32] if CUDA else [1, 2])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--out", type=Path, help="a folder for step.json, step.md and step.png")
    parser.add_argument("--draw", type=Path, help="only draw the step.json of a folder again")
    arguments = parser.parse_args()
    if arguments.draw:
        report(json.loads((arguments.draw / "step.json").read_text()), arguments.draw)
        return
    result: dict[str, Any] = {"ran": f"{describe()}, torch {torch.__version__}", "models": {}}
    with torch.inference_mode():
        result |= {"machine": machine(), "colouring": colouring()}
        for name in arguments.models:
            result["models"][name] = measure_model(name, arguments.batches, arguments.strategies)
            if arguments.out:
                arguments.out.mkdir(parents=True, exist_ok=True)
                (arguments.out / "step.json").write_text(json.dumps(result, indent=1) + "\n")
    print(page(result))
    if arguments.out:
        report(result, arguments.out)


if __name__ == "__main__":
    main()
