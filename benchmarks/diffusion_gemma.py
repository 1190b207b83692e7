"""What the mark costs DiffusionGemma: detection against perplexity and denoising steps.

Usage: python benchmarks/diffusion_gemma.py [--texts 24] [--weights FILE] [--out DIR]

No checkpoint fits on a small machine, and random weights have no opinion that a mark could spoil.
So a small model of transformers' own class is trained here, for two minutes of one core, on text of
a known source: a Markov chain over 24 words. The chain itself then says how likely a text is,
exactly. Each delta writes the same number of texts with transformers' own `generate` and the
defaults; then with all places biased at once, and without self-conditioning.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    LogitsProcessorList,
    SuppressTokensLogitsProcessor,
)

from dllmark import Detector, WatermarkKey
from dllmark.integrations.diffusion_gemma import STRATEGY, DllmarkCanvasProcessor
from dllmark.quality.repetition import repeated_ngrams
from dllmark.relation.key import Secret
from dllmark.relation.tokenizer import Tokenizer

SPECIAL, WORDS = 3, 24
CANVAS, PROMPT = 16, 4
DELTAS = (0.0, 1.0, 2.0, 4.0, 6.0)


def make_tokenizer() -> Tokenizer:
    """Return a tokenizer of three special tokens and 24 words."""
    names = ["<pad>", "<eos>", "<bos>", *(f"w{n}" for n in range(WORDS))]
    special = [
        {"id": id_, "content": name, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for id_, name in enumerate(names[:SPECIAL])
    ]
    vocabulary = {name: id_ for id_, name in enumerate(names)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<pad>"}
    words = {"version": "1.0", "added_tokens": special, "model": model}
    return Tokenizer(json.dumps(words | {"pre_tokenizer": {"type": "WhitespaceSplit"}}), "chain")


class Chain:
    """Text of a known distribution: each word depends on the one before it."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(3)
        self.table = (2.0 * torch.randn(WORDS, WORDS, generator=random)).softmax(-1)

    def texts(self, count: int, length: int, random: torch.Generator) -> Tensor:
        """Return the ids [count, length] of as many texts."""
        words = [torch.randint(WORDS, (count,), generator=random)]
        for _ in range(length - 1):
            words.append(self.table[words[-1]].multinomial(1, generator=random)[:, 0])
        return torch.stack(words, 1) + SPECIAL

    def perplexity(self, ids: Tensor) -> float:
        """Return the perplexity of texts [B, L] after their first word."""
        words = ids - SPECIAL
        return float((-self.table[words[:, :-1], words[:, 1:]].log()).mean().exp())


def make_model() -> DiffusionGemmaForBlockDiffusion:
    """Return a model with both kinds of attention and experts: 79,220 weights beside its vision."""
    text = {
        "vocab_size": SPECIAL + WORDS, "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "global_head_dim": 16, "sliding_window": 64, "num_experts": 2, "top_k_experts": 1,
        "moe_intermediate_size": 32, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    vision = {
        "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    torch.manual_seed(0)
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=CANVAS,
        image_token_id=0, boi_token_id=0, eoi_token_id=0,
    )  # fmt: skip
    return DiffusionGemmaForBlockDiffusion(config)


def train(model: DiffusionGemmaForBlockDiffusion, chain: Chain, steps: int) -> None:
    """Teach the model to restore a canvas of which a random share was replaced by random tokens.

    In every second step it is conditioned on its own first guess.
    """
    random = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)
    batch = 64
    started = time.process_time()
    for step in range(steps):
        ids = chain.texts(batch, PROMPT + CANVAS, random)
        prompt, clean = ids[:, :PROMPT], ids[:, PROMPT:]
        noisy = torch.rand(clean.shape, generator=random) < torch.rand(batch, 1, generator=random)
        noise = torch.randint(SPECIAL + WORDS, clean.shape, generator=random)
        canvas = torch.where(noisy, noise, clean)
        inputs = {"input_ids": prompt, "decoder_input_ids": canvas}
        if step % 2:
            with torch.no_grad():
                inputs["self_conditioning_logits"] = model(**inputs).logits
        logits = model(**inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), clean.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            spent = time.process_time() - started
            print(f"step {step + 1}: loss {loss.item():.3f}, {spent:.0f} s of one core", flush=True)


def write(
    model: DiffusionGemmaForBlockDiffusion, mark: DllmarkCanvasProcessor | None, prompts: Tensor
) -> tuple[Tensor, float]:
    """Return texts after the prompts, and how many denoising steps a canvas took."""
    torch.manual_seed(7)
    processors: list[Any] = [SuppressTokensLogitsProcessor(list(range(SPECIAL)))]
    processors += [] if mark is None else [mark]
    output = model.generate(
        prompts, max_new_tokens=6 * CANVAS, logits_processor=LogitsProcessorList(processors)
    )
    return output.sequences, float((CANVAS / output.tokens_per_forward).mean())


def without_feedback(model: DiffusionGemmaForBlockDiffusion) -> DiffusionGemmaForBlockDiffusion:
    """Return the model blind to its self-conditioning, as in the first step of each canvas."""

    def drop(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | {"self_conditioning_logits": None}

    model.model.decoder.register_forward_pre_hook(drop, with_kwargs=True)
    return model


class AtOnce(DllmarkCanvasProcessor):
    """Biases all places at once, for comparison: each sees its neighbours without bias."""

    def mark_canvas(self, before: Tensor, logits: Tensor, at: int) -> Tensor:
        """Return the biased logits."""
        canvas = torch.zeros(logits.shape[:2], dtype=torch.int64)
        revealed, known = canvas.bool(), torch.ones(len(canvas), dtype=torch.bool)
        biased = logits.clone()
        self.mark_block(before[:, -1], known, canvas, revealed, biased, ~revealed, at)
        return biased


def measure(
    model: DiffusionGemmaForBlockDiffusion,
    chain: Chain,
    texts: int,
    deltas: tuple[float, ...],
    make: type[DllmarkCanvasProcessor] = DllmarkCanvasProcessor,
) -> list[dict[str, Any]]:
    """Return one row for each delta."""
    tokenizer = make_tokenizer()
    key = WatermarkKey(Secret(b"sixteen bytes ok"), 0.5, tokenizer.id)
    detector = Detector(key, tokenizer)
    prompts = chain.texts(texts, PROMPT, torch.Generator().manual_seed(2))
    rows = []
    for delta in deltas:
        started = time.process_time()
        mark = make(key, STRATEGY, delta, tokenizer=tokenizer)
        ids, steps = write(model, mark, prompts)
        mark.check()
        found = [detector.detect(text[PROMPT:].tolist()) for text in ids]
        rows.append({
            "delta": delta,
            "mean z": float(np.mean([one.z for one in found])),
            "found at p < 0.01": float(np.mean([one.p_value < 0.01 for one in found])),
            "found at p < 1e-4": float(np.mean([one.p_value < 1e-4 for one in found])),
            "perplexity": chain.perplexity(ids[:, PROMPT - 1 :]),
            "repeated bigrams": float(np.mean([repeated_ngrams(t[PROMPT:].tolist()) for t in ids])),
            "steps a canvas": steps,
            "seconds": time.process_time() - started,
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Train, or read the weights of an earlier run, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=700, help="of training")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--weights", type=Path, help="kept here between runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/diffusion-gemma"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chain, model = Chain(), make_model()
    if arguments.weights and arguments.weights.exists():
        model.load_state_dict(torch.load(arguments.weights, weights_only=True))
    else:
        train(model.train(), chain, arguments.steps)
        if arguments.weights:
            torch.save(model.state_dict(), arguments.weights)
    model.eval()
    own = chain.texts(arguments.texts, 6 * CANVAS, torch.Generator().manual_seed(4))
    results = {"perplexity of the source": chain.perplexity(own)}
    results["fed back"] = measure(model, chain, arguments.texts, DELTAS)
    results["at once"] = measure(model, chain, arguments.texts, (2.0, 4.0), AtOnce)
    results["not fed back"] = measure(without_feedback(model), chain, arguments.texts, DELTAS[:4])
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "sweep.json").write_text(
        json.dumps(results, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
