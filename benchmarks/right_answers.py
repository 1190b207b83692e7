"""Count right answers to short questions, by the order of writing and with a mark.

Usage: python benchmarks/right_answers.py MODEL --out answers.jsonl [--keys 4] [--count 100]

Asks the questions of short_questions.jsonl, each of which has answers that are right. A text is
right if it holds one of them as a word of its own. Every mark writes under each of the keys.
Differences are against unmarked text in LLaDA's order, question by question; their intervals are
over questions.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np
from hardware import describe
from numpy.typing import NDArray

from dllmark.experiments.rivals.schemes import find_scheme
from dllmark.marking.watermark import Watermark
from dllmark.models.loading import Model, load_model
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.sampling.loop import OtherMark
from dllmark.sampling.settings import Llada, LladaOrder
from dllmark.sampling.texts import generate

QUESTIONS = Path(__file__).with_name("short_questions.jsonl")
ASKED = "{} Answer in one short sentence."
ORDERS: tuple[LladaOrder, ...] = ("low_confidence", "left_to_right")
MARKS = ("cooled-joint", "cooled-joint-left-to-right", "kgw-left-to-right")
RESAMPLES = 2000


def is_right(text: str, answers: list[str]) -> bool:
    """Say whether a text holds one of the answers as a word of its own.

    Capitals matter in what has up to two letters, since "he" is not helium.

    >>> is_right("It is paris.", ["Paris"]), is_right("It is 4510.", ["45"])
    (True, False)
    >>> is_right("Its symbol is He.", ["He"]), is_right("I think he knows.", ["He"])
    (True, False)
    """
    return any(
        re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text, re.I if len(one) > 2 else 0)
        for one in answers
    )


def marks_of(name: str, keys: int, model: Model, temperature: float) -> list[Watermark | OtherMark]:
    """Return a mark with its own δ under each key; every run has the same keys."""
    scheme, tokenizer = find_scheme(name), model.tokenizer
    secrets = [Secret(bytes([number + 1]) * 16) for number in range(keys)]
    made = [WatermarkKey(secret, scheme.gamma, tokenizer.id) for secret in secrets]
    return [scheme.mark(key, tokenizer, scheme.delta, temperature) for key in made]


def interval(differences: NDArray[np.float64]) -> tuple[float, float]:
    """Return a 95 % interval of a mean over questions, by the bootstrap."""
    picked = np.random.default_rng(0).integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.percentile(differences[picked].mean(1), [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    """Parse the command line, write, count and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keys", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--count", type=int, help="ask so many of the questions, taken evenly")
    asked = parser.parse_args()
    questions = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    stride = max(1, len(questions) // (asked.count or len(questions)))
    questions = questions[::stride][: asked.count]
    model = load_model(asked.model, device=asked.device, dtype=asked.dtype)
    writers: list[tuple[str, LladaOrder, list[Watermark | OtherMark | None]]] = [
        (f"unmarked, {order}", order, [None]) for order in ORDERS
    ]
    for name in MARKS:
        order = find_scheme(name).order or "low_confidence"
        writers.append((name, order, [*marks_of(name, asked.keys, model, asked.temperature)]))
    print(f"{asked.model}, {len(questions)} questions, {describe()}")
    print("| written | right, % | difference | ended, % |\n| --- | --- | --- | --- |")
    plain: NDArray[np.float64] | None = None
    with asked.out.open("w", encoding="utf-8") as file:
        for title, order, marks in writers:
            sampler = Llada(asked.tokens, asked.block, asked.temperature, order=order)  # one a step
            right: list[list[bool]] = []
            ended: list[bool] = []
            for number, mark in enumerate(marks):
                prompts = [ASKED.format(one["question"]) for one in questions]
                texts = generate(
                    model, prompts, mark, sampler, tokens=asked.tokens, batch_size=asked.batch
                )
                right.append([])
                for text, one in zip(texts, questions, strict=True):
                    right[-1].append(is_right(text.text, one["answers"]))
                    ended.append(len(text.ids) < asked.tokens)
                    record = {"written": title, "key": number, "right": right[-1][-1]}
                    record |= {"text": text.text, **one}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
            share = np.mean(np.array(right, dtype=np.float64), axis=0)
            plain = share if plain is None else plain
            low, high = (100 * end for end in interval(share - plain))
            change = f"{100 * (share - plain).mean():+.1f} ({low:+.1f} – {high:+.1f})"
            cells = title, f"{100 * share.mean():.1f}", change, f"{100 * np.mean(ended):.0f}"
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
