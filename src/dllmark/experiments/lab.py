"""Where experiments are done: texts are written once, kept in files, and measured as asked.

A text is appended to its file when its batch is done. An interrupted run finds them there and goes
on with the next batch, whose seed follows from its place, so that nothing is lost or repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllmark.detect import Detector
from dllmark.errors import InputError
from dllmark.experiments.settings import Dataset, Protocol, Setting
from dllmark.files import append_line, atomic_write, whole_lines
from dllmark.key import WatermarkKey
from dllmark.models.loading import Model
from dllmark.quality.perplexity import Judge, perplexities
from dllmark.quality.repetition import repeated_ngrams
from dllmark.sampling import Dream, Llada, Sampler, generate
from dllmark.watermark import Watermark

Floats = NDArray[np.float64]
Record = dict[str, Any]

Batch = tuple[int, list[str]]
Write = Callable[[Dataset, Setting, list[Batch]], Iterator[list[Record]]]
"""Writes batches of prompts, each with the number of its first one, and yields them in order."""


@dataclass
class Lab:
    """A model, prompts, and a folder that keeps all that was written and measured."""

    model: Model
    datasets: list[Dataset]
    folder: Path
    protocol: Protocol
    judge: Judge | None = None
    batch_size: int = 8
    write: Write | None = None
    on_batch: Callable[[str, int, int], None] = lambda name, done, total: None
    _texts: dict[tuple[str, Setting], list[Record]] = field(default_factory=dict)

    def texts(self, dataset: Dataset, setting: Setting) -> list[Record]:
        """Return the text of every prompt under a setting, writing those that are not there."""
        place = (dataset.name, setting)
        if place not in self._texts:
            self._texts[place] = self._complete(dataset, setting)
        return self._texts[place]

    def kept(self, dataset: Dataset, *settings: Setting) -> list[int]:
        """Return the prompts that count: long enough texts, and no loop where it is unmarked."""
        scored, most = self.protocol.scored, self.protocol.most_repeats
        plain = self.texts(dataset, settings[0].unmarked)
        long = [
            number
            for number in range(len(dataset.prompts))
            if all(len(self.texts(dataset, one)[number]["ids"]) >= scored for one in settings)
            and len(plain[number]["ids"]) >= scored
        ]
        kept = [number for number in long if repeated_ngrams(plain[number]["ids"]) <= most]
        if len(kept) < 2:
            raise InputError(
                f"of {len(dataset.prompts)} {dataset.name} texts {len(long)} have {scored} tokens, "
                f"and {len(kept)} of these repeat less than {most:.0%} of their bigrams: "
                "score fewer tokens (--scored) or allow more repeats (--max-repeats)"
            )
        return kept

    def z(self, texts: list[Record], detector: Detector, length: int | None = None) -> Floats:
        """Return the z of the first tokens of some texts."""
        cut = [text["ids"][: length or self.protocol.scored] for text in texts]
        return np.array([found.z for found in detector.detect_many(cut)])

    def detector(self, gamma: float, scoring: str = "unique") -> Detector:
        """Return the detector of the key of this folder for a γ."""
        return Detector(self.key(gamma), self.model.tokenizer, scoring=scoring)  # type: ignore[arg-type]

    def key(self, gamma: float) -> WatermarkKey:
        """Return the key of this folder for a γ, made at its first use."""
        path = self.folder / "keys" / f"gamma-{gamma:g}.key"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            WatermarkKey.generate(self.model.tokenizer.id, gamma=gamma).save(path)
        return WatermarkKey.load(path)

    def perplexity(self, dataset: Dataset, setting: Setting, numbers: list[int]) -> Floats:
        """Return the perplexity of some texts under the judge; it is kept beside them."""
        if self.judge is None:
            return np.full(len(numbers), np.nan)
        name = self.judge.name.replace("/", "--")
        path = self.folder / "perplexity" / name / dataset.name / f"{setting.slug}.json"
        found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        texts = self.texts(dataset, setting)
        missing = [number for number in numbers if str(number) not in found]
        if missing:
            pairs = [(texts[number]["prompt"], texts[number]["text"]) for number in missing]
            new = perplexities(self.judge, pairs)
            found |= {str(number): value for number, value in zip(missing, new, strict=True)}
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(json.dumps(found).encode())
        return np.array([found[str(number)] for number in numbers])

    def _complete(self, dataset: Dataset, setting: Setting) -> list[Record]:
        """Return all texts of a setting from its file, after writing what it lacks."""
        path = self.folder / "texts" / dataset.name / f"{setting.slug}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines, size = whole_lines(path)
        records = [json.loads(line) for line in lines]
        self._check(path, dataset, setting, records)
        size_, total = self.batch_size, len(dataset.prompts)
        batches = [
            (start, dataset.prompts[start : start + size_])
            for start in range(0, total, size_)
            if len(records) < min(start + size_, total)
        ]
        name = f"{dataset.name}, {setting.name}"
        write = self.write or self._write_here
        for written, (start, _) in zip(write(dataset, setting, batches), batches, strict=True):
            for record in written[len(records) - start :]:
                size = append_line(path, size, json.dumps(record).encode() + b"\n")
                records.append(record)
            self.on_batch(name, len(records), total)
        return records[:total]

    def _write_here(
        self, dataset: Dataset, setting: Setting, batches: list[Batch]
    ) -> Iterator[list[Record]]:
        """Write batches one after the other with this lab's model."""
        key = self.key(setting.gamma) if setting.strategy else None
        for start, prompts in batches:
            yield write_batch(self.model, key, self.protocol, setting, dataset.chat, start, prompts)

    def _check(self, path: Path, dataset: Dataset, setting: Setting, found: list[Record]) -> None:
        """Raise `InputError` if a file's texts are not of this run."""
        mark = self.key(setting.gamma).identity.to_dict() if setting.strategy else None
        for number, (record, prompt) in enumerate(zip(found, dataset.prompts, strict=False), 1):
            if record.get("prompt") != prompt or record.get("watermark") != mark:
                raise InputError(
                    f"{path}:{number} was written for another prompt or key: "
                    "give another output folder"
                )


def write_batch(
    model: Model,
    key: WatermarkKey | None,
    protocol: Protocol,
    setting: Setting,
    chat: bool,
    start: int,
    prompts: list[str],
) -> list[Record]:
    """Return the texts of one batch; its randomness follows from the number of its first prompt."""
    watermark = None
    if key is not None and setting.strategy is not None:
        watermark = Watermark(key, setting.strategy, setting.delta, tokenizer=model.tokenizer)
    texts = generate(
        model,
        prompts,
        watermark,
        sampler_of(model, protocol, setting),
        tokens=protocol.tokens,
        chat=chat,
        seed=start,
        batch_size=len(prompts),
    )
    return [text.to_dict() for text in texts]


def sampler_of(model: Model, protocol: Protocol, setting: Setting) -> Sampler:
    """Return the sampler the paper uses for a model: Dream's for Dream, and LLaDA's else."""
    steps = protocol.tokens // setting.per_step
    if model.family.name == "Dream":
        return Dream(steps, "entropy", setting.temperature)
    return Llada(steps, protocol.block, setting.temperature)
