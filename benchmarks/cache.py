"""Measure what a cache of keys and values changes: predictions, texts, perplexity, mark and time.

Usage: python benchmarks/cache.py prompts.jsonl [--count 8] [--judge smollm2] [--out texts.jsonl]

Writes each prompt's text without a cache and with each, from the same noise and with the same mark.
Time is that of all cores together, without loading. Then the first texts are written once more
without a cache, and at every step the logits of the masks are compared with what a cache gives.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import get_args

import torch
from hardware import describe
from torch import Tensor

from dllmark import Detector, Watermark, WatermarkKey, generate, load_model
from dllmark.models.loading import Model
from dllmark.quality.perplexity import load_judge, perplexities
from dllmark.quality.repetition import is_degenerate
from dllmark.relation.key import Identity, Secret
from dllmark.relation.tokenizer import Tokenizer
from dllmark.sampling.canvas import Canvas
from dllmark.sampling.denoiser import Denoiser, StepShape
from dllmark.sampling.settings import CacheMode, Sampler, default_llada
from dllmark.sampling.texts import Generation

SECRET = Secret(b"for measuring it")
COLUMNS = ("cache", "tokens as without", "mean z", "median perplexity", "degenerate", "CPU a text")
STATES = ("cache", "predictions", "likeliest token as without", "mean total variation")


@dataclass
class Beside:
    """A watermark whose texts are written without the sampler's cache, and compared with it."""

    mark: Watermark
    same: list[Tensor] = field(default_factory=list)
    moved: list[Tensor] = field(default_factory=list)

    @property
    def identity(self) -> Identity:
        """Whose mark it is."""
        return self.mark.identity

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the mark."""
        return self.mark.tokenizer

    def denoiser(
        self, model: Model, canvas: Canvas, sampler: Sampler, generator: torch.Generator
    ) -> Denoiser:
        """Return what reveals the tokens of a canvas."""
        return BothWays(self, model, canvas, sampler, generator)

    def note(self, cached: Tensor, exact: Tensor) -> None:
        """Keep how logits [N, V] with a cache differ from those without."""
        self.same.append((cached.argmax(-1) == exact.argmax(-1)).float())
        self.moved.append((cached.softmax(-1) - exact.softmax(-1)).abs().sum(-1) / 2)


class BothWays(Denoiser):
    """Predicts with and without its cache, compares, and goes by the latter."""

    def __init__(
        self,
        beside: Beside,
        model: Model,
        canvas: Canvas,
        sampler: Sampler,
        generator: torch.Generator,
    ) -> None:
        super().__init__(model, canvas, sampler, beside.mark, generator)
        self.beside = beside

    def _predict(self, covered: Tensor, shape: StepShape) -> Tensor:
        cached = super()._predict(covered, shape)
        exact = cached
        if shape.computed is not None:
            kept, self.cache = self.cache, None
            exact = super()._predict(covered, replace(shape, computed=None))
            self.cache = kept
        masked = ~self.canvas.revealed.gather(1, covered)
        self.beside.note(cached[masked], exact[masked])
        return exact


def alike(one: Generation, other: Generation) -> float:
    """Return the share of places with the same token, of those that both texts have."""
    return fmean(a == b for a, b in zip(one.ids, other.ids, strict=False))


def print_row(cells: tuple[str, ...]) -> None:
    """Print a row of a table as soon as it is known."""
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Write the texts, and print a row for each cache."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("prompts", type=Path, help='JSONL with "prompt" in each line')
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--count", type=int, default=8, help="use the first prompts only")
    parser.add_argument("--compared", type=int, default=2, help="texts compared at every step")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--judge", default="smollm2", help="who judges perplexity")
    parser.add_argument("--out", type=Path, help="append the texts to this file, as JSONL")
    given = parser.parse_args()
    lines = given.prompts.read_text().splitlines()[: given.count]
    prompts = [json.loads(line)["prompt"] for line in lines]
    judge, model = load_judge(given.judge), load_model(given.model)
    key = WatermarkKey(SECRET, 0.5, model.tokenizer.id)
    mark, detector = Watermark(key, tokenizer=model.tokenizer), Detector(key, model.tokenizer)
    print(f"{describe()}; {len(prompts)} texts of up to {given.tokens} tokens\n")
    print_row(COLUMNS)
    print_row(tuple("---" for _ in COLUMNS))
    samplers = {cache: default_llada(given.model, given.tokens, cache=cache, no_repeat_ngram=0)
                for cache in get_args(CacheMode)}  # fmt: skip
    exact: list[Generation] = []
    for cache in samplers:
        start = time.process_time()
        texts = [
            generate(model, [prompt], mark, samplers[cache], tokens=given.tokens, seed=seed)[0]
            for seed, prompt in enumerate(prompts)
        ]
        seconds = (time.process_time() - start) / len(texts)
        exact = exact or texts
        found = detector.detect_many([text.ids for text in texts])
        judged = perplexities(judge, [(text.prompt, text.text) for text in texts])
        print_row((
            cache, f"{fmean(map(alike, exact, texts)):.0%}", f"{fmean(one.z for one in found):.2f}",
            f"{median(judged):.1f}", f"{fmean(is_degenerate(text.ids) for text in texts):.0%}",
            f"{seconds:.1f} s",
        ))  # fmt: skip
        if given.out:
            with given.out.open("a") as file:
                for text in texts:
                    file.write(json.dumps({**text.to_dict(), "cache": cache}) + "\n")
    print()
    print_row(STATES)
    print_row(tuple("---" for _ in STATES))
    for cache in list(samplers)[1:]:
        beside = Beside(mark)
        for seed, prompt in enumerate(prompts[: given.compared]):
            generate(model, [prompt], beside, samplers[cache], tokens=given.tokens, seed=seed)
        same, moved = torch.cat(beside.same), torch.cat(beside.moved)
        print_row((cache, f"{len(same):,}", f"{same.mean():.1%}", f"{moved.mean():.3f}"))


if __name__ == "__main__":
    main()
