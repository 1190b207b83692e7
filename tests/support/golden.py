"""Texts of a fixed key and seed by the embedded model.

They are our own output, and prove nothing but that a change of the code has not changed the mark.
A change that means to (new weights, another scheme) writes them anew and says why:
`python tests/support/golden.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dllmark
from dllmark import Detector, Dream, Llada, Parallel, Watermark

FILE = Path(__file__).with_suffix(".json")

PROMPT = "What do a dog and a lighthouse say?"

SAMPLERS = {
    "llada": Llada(steps=5, block_length=10, temperature=0.8),
    "apart": Llada(steps=5, block_length=10, temperature=0.8, apart=True),
    "dream": Dream(steps=5, order="entropy", temperature=0.2, top_p=0.95),
    "parallel": Parallel(threshold=0.6, block_length=10, temperature=0.0),
}

TEXT = """The lighthouse keeper climbed the stairs every evening, and every evening he counted
them: one hundred and twelve. Café, naïve, 12.5 %, and a tab\there."""


def texts(key: dllmark.WatermarkKey) -> dict[str, Any]:
    """Return the token ids each strategy and each sampler writes, and how they are scored.

    In float32, since a kernel for 4-bit weights rounds, and not every processor has one.
    """
    model = dllmark.load_model("embedded", device="cpu", dtype="float32")
    detector = Detector(key, model.tokenizer)
    cases: dict[str, tuple[str, Watermark | None]] = {
        f"llada {name}": ("llada", Watermark(key, name, 4.0, tokenizer=model.tokenizer))
        for name in dllmark.STRATEGIES
    }
    for name in ("llada joint", "llada adaptive-joint", "llada cooled-joint"):
        cases[name] = ("apart", cases[name][1])
    marked = Watermark(key, "expected-bidirectional", 4.0, tokenizer=model.tokenizer)
    cases |= {"dream": ("dream", marked), "parallel": ("parallel", marked)}
    cases |= {"unmarked": ("llada", None)}
    scores: dict[str, Any] = {"text": _scores(detector, TEXT)}
    for name, (sampler, watermark) in cases.items():
        [written] = dllmark.generate(
            model, [PROMPT], watermark, SAMPLERS[sampler], tokens=20, seed=7
        )
        scores[name] = {"ids": written.ids, **_scores(detector, written.ids)}
    return scores


def _scores(detector: Detector, text: str | list[int]) -> dict[str, int]:
    detection = detector.detect(text)
    return {"green": detection.green, "pairs": detection.pairs}


if __name__ == "__main__":
    from dllmark.relation.key import Secret, WatermarkKey

    key = WatermarkKey(Secret(bytes(range(16))), 0.5, dllmark.load_tokenizer("embedded").id)
    lines = (f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in texts(key).items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
