"""How well each strategy is detected on a model: the order of the paper's Table 1, in one run.

Usage: python benchmarks/strategies.py PROMPTS.jsonl [--model embedded] [--samples 200] [--out DIR]

Every strategy writes the same prompts (the first 30 tokens of each "text") with the same settings;
the thresholds come from unmarked texts of the same model. Also reports the share of tokens whose
left neighbour was known when they were chosen, and what decoding a text and tokenising it again
changes. Meant for a GPU; `--samples 8 --tokens 64 --steps 32` shows that it runs on a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from hardware import describe

from dllmark import (
    Detector,
    Generation,
    Llada,
    Model,
    Watermark,
    WatermarkKey,
    generate,
    load_model,
)
from dllmark.stats import share_interval, threshold
from dllmark.watermark import STRATEGIES

RATES = (0.005, 0.01, 0.05)
PROMPT_TOKENS = 30


def read_prompts(path: Path, model: Model, count: int) -> list[str]:
    """Return the beginnings of the first texts of a corpus."""
    with path.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, count)]
    encoded = model.tokenizer.encode_many(texts)
    return [model.tokenizer.decode(ids[:PROMPT_TOKENS]) for ids in encoded]


def scores(detector: Detector, texts: list[Generation], length: int) -> np.ndarray:
    """Return z of the first tokens of each text."""
    return np.array([found.z for found in detector.detect_many(t.ids[:length] for t in texts)])


def retokenised(detector: Detector, texts: list[Generation]) -> dict[str, float]:
    """Return the share of texts and ids that change when text is decoded and tokenised again."""
    again = detector.tokenizer.encode_many([text.text for text in texts])
    changed = [
        np.mean([a != b for a, b in zip(text.ids, ids.tolist(), strict=False)]) if text.ids else 0.0
        for text, ids in zip(texts, again, strict=True)
    ]
    z = [detector.detect(text.ids).z - detector.detect(text.text).z for text in texts]
    return {
        "texts changed": float(np.mean([share > 0 for share in changed])),
        "ids at another place": float(np.mean(changed)),
        "mean change of z": float(np.mean(z)),
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write and score the texts of every strategy."""
    model = load_model(arguments.model)
    prompts = read_prompts(arguments.prompts, model, arguments.samples)
    key = WatermarkKey.generate(model.tokenizer.id, gamma=arguments.gamma)
    detector = Detector(key, model.tokenizer)
    sampler = Llada(arguments.steps, 32, arguments.temperature, suppress_end=True)

    def write(watermark: Watermark | None) -> list[Generation]:
        return generate(
            model, prompts, watermark, sampler, tokens=arguments.tokens, chat=False,
            batch_size=arguments.batch, progress=True,
        )  # fmt: skip

    plain = write(None)
    null = scores(detector, plain, arguments.scored)
    limits = {rate: threshold(null, rate) for rate in RATES}
    rows: dict[str, Any] = {}
    for name in STRATEGIES:
        start = time.monotonic()
        texts = write(Watermark(key, name, arguments.delta, tokenizer=model.tokenizer))
        z = scores(detector, texts, arguments.scored)
        hits = {rate: int((z > limit.value).sum()) for rate, limit in limits.items()}
        rows[name] = {
            "mean z": float(z.mean()),
            "left neighbour known": float(np.mean([text.known_left for text in texts])),
            "seconds": time.monotonic() - start,
            **{f"TPR at {100 * rate:g} % FPR": vars(share_interval(hit, len(z)))
               for rate, hit in hits.items()},
            "tokenised again": retokenised(detector, texts),
        }  # fmt: skip
    return {
        "ran": describe(),
        "settings": {name: value for name, value in vars(arguments).items() if name != "out"}
        | {"prompts": arguments.prompts.name},
        "unmarked": {"mean z": float(null.mean()), "sd z": float(null.std()),
                     "thresholds": {str(rate): limit.value for rate, limit in limits.items()}},
        "strategies": rows,
    }  # fmt: skip


def percent(interval: dict[str, float]) -> str:
    """Return a share and its interval in per cent."""
    share, low, high = (100 * interval[name] for name in ("share", "low", "high"))
    return f"{share:.1f} ({low:.0f}-{high:.0f})"


def table(result: dict[str, Any]) -> str:
    """Return the result as a Markdown table."""
    rates = [f"TPR at {100 * rate:g} % FPR" for rate in RATES]
    lines = [
        f"| strategy | mean z | left known | {' | '.join(rates)} | ids changed | z changed |",
        "| --- | --- | --- |" + " --- |" * (len(rates) + 2),
    ]
    for name, row in result["strategies"].items():
        cells = [percent(row[rate]) for rate in rates]
        known = f"{100 * row['left neighbour known']:.0f} %"
        again = row["tokenised again"]
        cells += [
            f"{100 * again['ids at another place']:.2f} %",
            f"{again['mean change of z']:.3f}",
        ]
        lines.append(f"| {name} | {row['mean z']:.2f} | {known} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path, help='JSONL with "text" in each line')
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--scored", type=int, default=200, help="tokens scored of each text")
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--gamma", type=float, default=0.5)
    parser.add_argument("--delta", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--out", type=Path, help="a folder for result.json and result.md")
    arguments = parser.parse_args()
    result = measure(arguments)
    page = f"{result['ran']}\n\n{table(result)}\n"
    print(page)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        (arguments.out / "result.md").write_text(page)


if __name__ == "__main__":
    main()
