"""Where experiments are done: texts are written once, kept in files, and measured.

A text is appended to its file when its batch is done. An interrupted run finds them there and goes
on with the next batch, whose seed follows from its place, so that nothing is lost or repeated. A
model or a judge is loaded only where something is missing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.detector import Detector, Scoring
from dllmark.errors import InputError
from dllmark.experiments import runs
from dllmark.experiments.batches import Batch, BatchWriter, TextRecord
from dllmark.experiments.runs import Runs, Written
from dllmark.experiments.settings import Dataset, Protocol, Setting
from dllmark.files import append_line, atomic_write, whole_lines, writing
from dllmark.quality.perplexity import Judge, load_judge, perplexities
from dllmark.quality.repetition import repeated_ngrams
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer

Floats = NDArray[np.float64]

ENOUGH_TO_TELL = 8
"""After so many unmarked texts, all of them too short, no more are written."""


@dataclass(frozen=True)
class CountedPrompts:
    """The prompts that count, and how many do not: some text too short, or the unmarked a loop."""

    numbers: list[int]
    short: int
    looping: int

    @property
    def cells(self) -> dict[str, int]:
        """What a report says of it."""
        return {
            "texts": len(self.numbers),
            "left out, short": self.short,
            "left out, repetitive": self.looping,
        }


@dataclass
class _File:
    """The texts of all prompts of one kind under one setting."""

    dataset: Dataset
    setting: Setting
    path: Path
    size: int
    records: list[TextRecord]

    @property
    def missing(self) -> int:
        return max(0, len(self.dataset.prompts) - len(self.records))

    def append(self, records: list[TextRecord]) -> None:
        for record in records:
            self.size = append_line(self.path, self.size, json.dumps(record).encode() + b"\n")
            self.records.append(_packed(record))


@dataclass
class Lab:
    """Prompts, somebody who writes, and a folder that keeps all that was written and measured.

    `model` and the judges are names: of the model the writer writes with, and of who judges
    perplexity, None for nobody. `command` is noted in `runs.jsonl`. With an `own_key` all marks
    are of that one, and the folder keeps none.
    """

    model: str
    tokenizer: Tokenizer
    datasets: list[Dataset]
    folder: Path
    protocol: Protocol
    writer: BatchWriter
    judge: str | None = None
    batch_size: int = 8
    command: str = ""
    second_judge: str | None = None
    on_batch: Callable[[str, int, int], None] = lambda name, done, total: None
    own_key: WatermarkKey | None = field(default=None, repr=False)
    _texts: dict[tuple[str, Setting], list[TextRecord]] = field(default_factory=dict)
    _repeats: dict[tuple[str, Setting], Floats] = field(default_factory=dict)
    _judges: dict[str, Judge] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._runs = Runs(self.folder / "runs.jsonl")

    def complete(self, settings: Iterable[Setting], *, any_length: bool = False) -> None:
        """Write all texts that are missing under some settings, marked and unmarked, in one go.

        The unmarked ones come first: where all of them are too short to be scored, `InputError` is
        raised before the others are written, unless texts of `any_length` count.
        """
        wanted = dict.fromkeys(one for setting in settings for one in (setting.unmarked, setting))
        unmarked_first = sorted(wanted, key=lambda setting: setting.strategy is not None)
        places = [
            (dataset, setting)
            for setting in unmarked_first
            for dataset in self.datasets
            if (dataset.name, setting) not in self._texts
        ]
        self._complete(places, any_length)

    def texts(self, dataset: Dataset, setting: Setting) -> list[TextRecord]:
        """Return the text of every prompt under a setting, writing those that are not there."""
        if (dataset.name, setting) not in self._texts:
            self._complete([(dataset, setting)], any_length=True)
        return self._texts[dataset.name, setting]

    def notes(self, settings: Iterable[Setting]) -> list[Written]:
        """Return how the texts under some settings were written, the unmarked ones included."""
        slugs = {one.slug for setting in settings for one in (setting, setting.unmarked)}
        names = {dataset.name for dataset in self.datasets}
        return [one for one in self._runs.notes if one.prompts in names and one.setting in slugs]

    def kept(self, dataset: Dataset, *settings: Setting) -> CountedPrompts:
        """Return the prompts that count: long enough texts, and no loop where it is unmarked."""
        scored, most = self.protocol.scored, self.protocol.most_repeats
        plain = settings[0].unmarked
        long = np.ones(len(dataset.prompts), dtype=np.bool_)
        for setting in (plain, *settings):
            long &= [len(text["ids"]) >= scored for text in self.texts(dataset, setting)]
        if (dataset.name, plain) not in self._repeats:
            repeats = [repeated_ngrams(text["ids"]) for text in self.texts(dataset, plain)]
            self._repeats[dataset.name, plain] = np.array(repeats)
        counted = long & (self._repeats[dataset.name, plain] <= most)
        kept = CountedPrompts(
            np.flatnonzero(counted).tolist(), int((~long).sum()), int((long & ~counted).sum())
        )
        if len(kept.numbers) < 2:
            raise InputError(
                f"of {len(long)} {dataset.name} texts {long.sum()} have {scored} tokens, and "
                f"{len(kept.numbers)} of these repeat less than {most:.0%} of their bigrams: "
                "let no text end early (--suppress-end), score fewer tokens (--scored), or allow "
                "more repeats (--max-repeats)"
            )
        return kept

    def z(self, texts: list[TextRecord], detector: Detector, length: int | None = None) -> Floats:
        """Return the z of the first tokens of some texts."""
        cut = [text["ids"][: length or self.protocol.scored] for text in texts]
        return np.array([detection.z for detection in detector.detect_many(cut)])

    def detector(self, gamma: float, scoring: Scoring = "unique") -> Detector:
        """Return the detector of the key of this folder for a γ."""
        return Detector(self.key(gamma), self.tokenizer, scoring=scoring)

    def key(self, gamma: float, number: int = 0) -> WatermarkKey:
        """Return a key of this folder for a γ, made at its first use; or the lab's own."""
        if self.own_key is not None:
            return self.own_key
        which = f"-{number}" if number else ""
        path = self.folder / "keys" / f"gamma-{gamma:g}{which}.key"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            WatermarkKey.generate(self.tokenizer.id, gamma=gamma).save(path)
        return WatermarkKey.load(path)

    @property
    def judges(self) -> list[str]:
        """Who judges perplexity."""
        return [judge for judge in (self.judge, self.second_judge) if judge is not None]

    def perplexity(
        self,
        dataset: Dataset,
        setting: Setting,
        numbers: list[int],
        judge: str | None = None,
        *,
        next_prompt: bool = False,
    ) -> Floats:
        """Return the perplexity of some texts under a judge, the first if none is named.

        It is kept in a file. A text follows its own prompt, or with `next_prompt` the next one of
        the dataset, to which it is no answer.
        """
        judge = judge or self.judge
        if judge is None:
            return np.full(len(numbers), np.nan)
        kind = f"{dataset.name}, next prompt" if next_prompt else dataset.name
        name = re.sub(r"[/\\:]", "--", judge)
        path = self.folder / "perplexity" / name / kind / f"{setting.slug}.json"
        known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        texts, prompts = self.texts(dataset, setting), dataset.prompts
        missing = [number for number in numbers if str(number) not in known]
        if missing:
            shown = [(number + next_prompt) % len(prompts) for number in missing]
            pairs = [(prompts[at], texts[number]["text"])
                     for at, number in zip(shown, missing, strict=True)]  # fmt: skip
            new = perplexities(self._loaded(judge), pairs)
            known |= {str(number): value for number, value in zip(missing, new, strict=True)}
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(json.dumps(known).encode())
        return np.array([known[str(number)] for number in numbers])

    def _loaded(self, judge: str) -> Judge:
        """Return a judge, loaded at its first use."""
        if judge not in self._judges:
            self._judges[judge] = load_judge(judge)
        return self._judges[judge]

    def _complete(self, places: list[tuple[Dataset, Setting]], any_length: bool) -> None:
        """Read the files of some places, write what they lack, and remember all."""
        files = [self._read(*place) for place in places]
        tasks = [(file, batch) for file in files if file.missing for batch in self._batches(file)]
        for file in files if tasks and not any_length else []:
            self._check_lengths(file)
        if tasks:
            self._write(tasks, any_length)
        for file in files:
            texts = file.records[: len(file.dataset.prompts)]
            self._texts[file.dataset.name, file.setting] = texts

    def _write(self, tasks: list[tuple[_File, Batch]], any_length: bool) -> None:
        """Write batches into their files, and note how that was done."""
        files = {file.path: file for file, _ in tasks}
        total = sum(file.missing for file in files.values())
        for judge in self.judges:  # what is wrong with it shows before hours of writing
            self._loaded(judge)
        written = self.writer.write([batch for _, batch in tasks])
        done, since = 0, time.monotonic()
        for (file, batch), records in zip(tasks, written, strict=True):
            self._check_dtype(file)
            new = records[len(file.records) - batch.first :]
            file.append(new)
            done, now = done + len(new), time.monotonic()
            self._runs.add(self._note(file, len(new), round(now - since, 3)))
            since = now
            self.on_batch(f"{file.dataset.name}, {file.setting.name}", done, total)
            if not any_length:
                self._check_lengths(file)

    def _check_lengths(self, file: _File) -> None:
        """Raise `InputError` where an unmarked file has texts by now, and none can be scored."""
        scored, texts = self.protocol.scored, file.records
        if file.setting.strategy or len(texts) < min(ENOUGH_TO_TELL, len(file.dataset.prompts)):
            return
        if all(len(text["ids"]) < scored for text in texts):
            raise InputError(
                f"none of the first {len(texts)} unmarked {file.dataset.name} texts has the "
                f"{scored} tokens that are scored: let no text end early (--suppress-end, with "
                "another output folder), or score fewer tokens (--scored)"
            )

    def _check_dtype(self, file: _File) -> None:
        """Raise `InputError` where other texts of a file were computed in other numbers."""
        now = self.writer.dtype
        for note in self._runs.of(file.dataset.name, file.setting.slug) if file.records else []:
            if note.dtype not in ("", now):
                raise InputError(
                    f"{file.path} was begun in {note.dtype}, and this is {now}: "
                    f"go on with --dtype {note.dtype}, or give another output folder"
                )

    def _note(self, file: _File, texts: int, seconds: float) -> Written:
        return Written(
            file.dataset.name, file.setting.slug, texts, seconds, self.model, self.protocol.tokens,
            self.protocol.suppress_end, self.protocol.block, self.batch_size, self.writer.hardware,
            self.command, runs.today(), runs.software(), self.protocol.cache,
            self.protocol.apart, self.protocol.no_repeat_ngram, self.writer.dtype,
        )  # fmt: skip

    def _batches(self, file: _File) -> list[Batch]:
        """Return the batches of a file that hold a text it lacks."""
        prompts, size = file.dataset.prompts, self.batch_size
        setting = file.setting
        key = self.key(setting.gamma, setting.key) if setting.strategy else None
        started = len(file.records) // size * size
        return [
            Batch(setting, self.protocol, file.dataset.chat, key, first,
                  tuple(prompts[first : first + size]))
            for first in range(started, len(prompts), size)
        ]  # fmt: skip

    def _read(self, dataset: Dataset, setting: Setting) -> _File:
        """Return the texts of a file; raise `InputError` if they are not of this run."""
        path = self.folder / "texts" / dataset.name / f"{setting.slug}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines, size = whole_lines(path)
        if not lines:  # what was measured of texts that are gone is not of those to come
            for kind in (dataset.name, f"{dataset.name}, next prompt"):
                for old in self.folder.glob(f"perplexity/*/{kind}/{setting.slug}.json"):
                    old.unlink()
        try:
            records = [_packed(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path} is damaged: remove it, and it is written again") from None
        file = _File(dataset, setting, path, size, records)
        for note in self._runs.of(dataset.name, setting.slug) if lines else []:
            said = self._note(file, 0, 0.0).options
            if note.options != said or (file.missing and note.model != self.model):
                raise InputError(
                    f"{path} was written by {note.model} in {note.tokens} tokens: give another "
                    f"output folder, or --model {note.model} {note.options}"
                )
        key = self.key(setting.gamma, setting.key) if setting.strategy else None
        mark = key.identity.to_dict() if key else None
        for number, (record, prompt) in enumerate(
            zip(file.records, dataset.prompts, strict=False), 1
        ):
            if record.get("prompt") != prompt or record.get("watermark") != mark:
                raise InputError(
                    f"{path}:{number} was written for another prompt or key: "
                    "give another output folder"
                )
        return file


def _packed(record: TextRecord) -> TextRecord:
    """Return a text with its ids in a tenth of the memory that a list takes."""
    return {**record, "ids": np.asarray(record["ids"], dtype=np.int32)}
