"""Texts of a fixed key and seed by the embedded model; `python tests/support/golden.py` prints.

They are our own output, and prove nothing but that a change of the code has not changed the mark.
A change that means to (new weights, another scheme) writes golden.json anew and says why.
"""

from __future__ import annotations

import json
from typing import Any

import dllmark
from dllmark import Detector, Dream, Llada, Parallel, Watermark

PROMPT = "Write a story about a dog and a lighthouse."

SAMPLERS = {
    "llada": Llada(steps=16, temperature=0.8),
    "dream": Dream(steps=16, order="entropy", temperature=0.2, top_p=0.95),
    "parallel": Parallel(threshold=0.6, temperature=0.0),
}

TEXT = """The lighthouse keeper climbed the stairs every evening, and every evening he counted
them: one hundred and twelve. Café, naïve, 12.5 %, and a tab\there."""


def texts(key: dllmark.WatermarkKey, model: dllmark.Model) -> dict[str, Any]:
    """Return the token ids each strategy and each sampler writes, and how they are scored."""
    detector = Detector(key, model.tokenizer)
    cases: dict[str, tuple[str, Watermark | None]] = {
        f"llada {name}": ("llada", Watermark(key, name, 2.0, tokenizer=model.tokenizer))
        for name in dllmark.STRATEGIES
    }
    marked = Watermark(key, "expected-bidirectional", 2.0, tokenizer=model.tokenizer)
    cases |= {"dream": ("dream", marked), "parallel": ("parallel", marked)}
    cases |= {"unmarked": ("llada", None)}
    scores: dict[str, Any] = {"text": _scores(detector, TEXT)}
    for name, (sampler, watermark) in cases.items():
        [written] = dllmark.generate(
            model, [PROMPT], watermark, SAMPLERS[sampler], tokens=32, seed=7
        )
        scores[name] = {"ids": written.ids, **_scores(detector, written.ids)}
    return scores


def _scores(detector: Detector, text: str | list[int]) -> dict[str, int]:
    detection = detector.detect(text)
    return {"green": detection.green, "pairs": detection.pairs}


if __name__ == "__main__":
    from dllmark.relation.key import Secret, WatermarkKey

    model = dllmark.load_model("embedded")
    key = WatermarkKey(Secret(bytes(range(16))), 0.5, model.tokenizer.id)
    lines = (f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in texts(key, model).items())
    print("{\n" + ",\n".join(lines) + "\n}")
