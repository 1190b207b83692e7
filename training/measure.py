"""Let a model write, and say how good its texts are, how much they loop, and how well marks show.

Usage: python training/measure.py MODEL --beginnings c4.jsonl --questions eli5.jsonl --out texts/ \
           --judge smollm2 --judge qwen.gguf

After the first 30 tokens of 150 documents ("text") the model goes on for 256 tokens and may not
end; it answers 100 questions as `dllmark generate` does. Both are written without a mark and with
the default one, by four keys. Prints a line of JSON for each kind, what people wrote among them,
and keeps the texts. The last judge says which answers are likelier after their own question than
after the next one.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.detection.detector import Detector
from dllmark.experiments.prompts import read_c4, read_eli5
from dllmark.experiments.settings import Dataset
from dllmark.marking.watermark import Watermark
from dllmark.models.loading import Model, load_model
from dllmark.quality.perplexity import Judge, load_judge, perplexities
from dllmark.quality.repetition import is_degenerate, repeated_ngrams
from dllmark.relation.key import WatermarkKey
from dllmark.sampling.settings import (
    TEMPERATURE,
    TOKENS,
    CacheMode,
    Llada,
    default_llada,
    default_no_repeat,
    default_strategy,
)
from dllmark.sampling.texts import generate
from documents import CHAT

KEYS = 4
"""How many keys share the prompts of a kind."""

SHORT, JUDGED = 60, 20
"""Answers of fewer tokens are short; texts of fewer have no perplexity worth counting."""

RATES = (0.01, 0.001)

TURN = re.compile(r"<\|im_start\|>|^\s*(user|human|question)\s*(:|$)", re.IGNORECASE | re.MULTILINE)
"""How another user's turn begins."""


@dataclass(frozen=True)
class Kind:
    """One way of writing: for which prompts, how long, how many tokens a step; else as commands."""

    dataset: Dataset
    tokens: int
    temperature: float
    pace: int
    cache: CacheMode | None = None
    block: int | None = None
    no_repeat_ngram: int = 0

    @property
    def name(self) -> str:
        """What its texts are called."""
        return f"{self.dataset.name}-t{self.temperature:g}-p{self.pace}".lower()

    @property
    def sampler(self) -> Llada:
        """Who writes: as `dllmark generate` does, but that only answers may end early."""
        return default_llada(
            "embedded", self.tokens, steps=self.tokens // self.pace, temperature=self.temperature,
            suppress_end=not self.dataset.chat, cache=self.cache, block_length=self.block,
            no_repeat_ngram=self.no_repeat_ngram,
        )  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A text after its prompt, and what detection says of it where it is marked."""

    prompt: str
    text: str
    ids: list[int]
    z: float | None = None
    p_value: float | None = None


def write(model: Model, kind: Kind, keys: Sequence[WatermarkKey | None], batch: int) -> list[Text]:
    """Return the texts of a kind, the prompts shared out among the keys."""
    prompts = kind.dataset.prompts
    written: list[Text] = []
    for number, part in enumerate(np.array_split(np.arange(len(prompts)), len(keys))):
        if not len(part):
            continue
        key, some = keys[number], [prompts[at] for at in part]
        strategy = default_strategy(kind.sampler).name
        mark = None if key is None else Watermark(key, strategy, tokenizer=model.tokenizer)
        texts = generate(
            model, some, mark, kind.sampler, tokens=kind.tokens, chat=kind.dataset.chat,
            seed=number, batch_size=batch,
        )  # fmt: skip
        plain = [Text(text.prompt, text.text, text.ids) for text in texts]
        if key is None:
            written += plain
            continue
        found = Detector(key, model.tokenizer).detect_many(
            [np.array(text.ids, dtype=np.int64) for text in plain]
        )
        written += [Text(text.prompt, text.text, text.ids, one.z, one.p_value)
                    for text, one in zip(plain, found, strict=True)]  # fmt: skip
    return written


def by_people(model: Model, kind: Kind) -> list[Text]:
    """Return what people wrote after the prompts of a kind, as long as the model's texts."""
    encoded = [ids[: kind.tokens] for ids in model.tokenizer.encode_many(kind.dataset.truths)]
    return [Text(prompt, model.tokenizer.decode(ids), ids.tolist())
            for prompt, ids in zip(kind.dataset.prompts, encoded, strict=True)]  # fmt: skip


def report(texts: list[Text], judges: dict[str, Judge], *, answers: bool) -> dict[str, Any]:
    """Return what is measured of texts."""
    lengths = np.array([len(text.ids) for text in texts])
    found: dict[str, Any] = {
        "texts": len(texts),
        "degenerate": float(np.mean([is_degenerate(text.ids) for text in texts])),
        "repeated 4-grams": float(np.mean([repeated_ngrams(text.ids, 4) for text in texts])),
        "median tokens": float(np.median(lengths)),
    }
    if answers:
        found[f"under {SHORT} tokens"] = float((lengths < SHORT).mean())
        turns = [bool(TURN.search(text.text)) for text in texts]
        found["another user's turn"] = float(np.mean(turns))
    if texts[0].z is not None:
        found["mean z"] = float(np.mean([text.z for text in texts]))
        for rate in RATES:
            hits = [text.p_value is not None and text.p_value <= rate for text in texts]
            found[f"detected at {100 * rate:g} %"] = float(np.mean(hits))
    for name, judge in judges.items():
        own = judged(judge, texts, 0)
        found[f"perplexity by {name}"] = float(np.nanmedian(own[lengths >= JUDGED]))
        if answers and name == list(judges)[-1]:
            other = judged(judge, texts, 1)
            likelier = (own < other)[np.isfinite(own + other)]
            found[f"on topic by {name}"] = float(likelier.mean())
    return found


def judged(judge: Judge, texts: list[Text], ahead: int) -> np.ndarray:
    """Return the perplexity of each text after its own prompt, or after one so far ahead."""
    count = len(texts)
    pairs = [(texts[(at + ahead) % count].prompt, texts[at].text) for at in range(count)]
    return np.array(perplexities(judge, pairs))


def measure(model: Model, arguments: argparse.Namespace, judges: dict[str, Judge]) -> None:
    """Write all texts of one model, and print and keep a line for each kind."""
    tokenizer = model.tokenizer
    c4 = read_c4(str(arguments.beginnings), tokenizer, arguments.count)
    eli5 = read_eli5(str(arguments.questions), arguments.asked)
    long, short = arguments.tokens or 256, arguments.tokens or TOKENS
    how = arguments.cache, arguments.block, arguments.no_repeat_ngram
    kinds = [
        Kind(c4, long, 0.8, 1, *how),
        Kind(eli5, short, TEMPERATURE, 1, *how),
        Kind(c4, long, 0.0, 1, *how),
        Kind(c4, long, 0.8, 4, *how),
    ]
    kinds = [kind for kind in kinds if kind.name in (arguments.kind or [k.name for k in kinds])]
    for kind in kinds[:2]:
        note(arguments.out, kind, "people", by_people(model, kind), judges, 0.0)
    keys = [WatermarkKey.generate(tokenizer.id) for _ in range(KEYS)]
    for name, used in (("unmarked", [None]), ("marked", keys)):
        for kind in kinds:
            start = time.monotonic()
            texts = write(model, kind, used, arguments.batch)
            note(arguments.out, kind, name, texts, judges, time.monotonic() - start)


def note(
    out: Path, kind: Kind, what: str, texts: list[Text], judges: dict[str, Judge], seconds: float
) -> None:
    """Print and keep what was measured of some texts, and keep the texts."""
    kept = (json.dumps(vars(text), ensure_ascii=False) + "\n" for text in texts)
    (out / f"{kind.name}-{what}.jsonl").write_text("".join(kept), encoding="utf-8")
    found = report(texts, judges, answers=kind.dataset.chat)
    line = json.dumps({"kind": kind.name, "by": what, "writing took": round(seconds, 1), **found})
    print(line, flush=True)
    with (out / "measured.jsonl").open("a", encoding="utf-8") as file:
        print(line, file=file)


def main() -> None:
    """Parse the command line and measure the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="`embedded`, or a folder")
    parser.add_argument("--beginnings", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--judge", action="append", default=[], help="of perplexity; several")
    parser.add_argument("--count", type=int, default=150, help="beginnings")
    parser.add_argument("--asked", type=int, default=100, help="questions")
    parser.add_argument("--tokens", type=int, help="of every text; else 256, and 128 of answers")
    parser.add_argument("--cache", help="else as in `dllmark generate`")
    parser.add_argument("--block", type=int, help="tokens of one; else as in `dllmark generate`")
    parser.add_argument("--no-repeat-ngram", type=int, help="else as in `dllmark generate`")
    parser.add_argument("--kind", action="append", help="only this one, by its name; several")
    parser.add_argument("--batch", type=int, default=150)
    arguments = parser.parse_args()
    if arguments.no_repeat_ngram is None:
        arguments.no_repeat_ngram = default_no_repeat(arguments.model)
    arguments.out.mkdir(parents=True, exist_ok=True)
    judges = {Path(name).name: load_judge(name) for name in arguments.judge}
    model = load_model(arguments.model)
    if model.family.name == CHAT.name:  # trained without the message that Dream starts with
        model = replace(model, family=CHAT, template=None)
    measure(model, arguments, judges)


if __name__ == "__main__":
    main()
