"""Many prompts in, many texts out, in a file that an interrupted run goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dllmark.errors import InputError, MismatchError, ModelError, TokenizerError
from dllmark.files import (
    append_line,
    check_unicode,
    input_name,
    only_writer_of,
    parse_record,
    read_input,
    reading,
    whole_lines,
    writing,
)
from dllmark.marking.watermark import Watermark
from dllmark.models.loading import Model, load_model
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import load_tokenizer
from dllmark.sampling import Dream, Generation, Llada, Parallel, Sampler, check_prompts, generate
from dllmark.sampling.schedule import check_length
from dllmark.sampling.settings import DreamOrder, Kept, LladaOrder
from dllmark.terminal import step_bar, watched

BATCH = 8
"""Texts written together."""


def gather_prompts(arguments: list[str], path: str | None) -> list[str]:
    """Return the prompts of the arguments, then those of the file; - or neither is the input."""
    sources = [path] if path else []
    if "-" in arguments or not (arguments or path):
        sources.append("-")
    prompts = [argument for argument in arguments if argument != "-"]
    for source in dict.fromkeys(sources):
        prompts += read_prompts(source)
    for number, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise InputError(f"prompt {number} is empty: give at least one word to start from")
        check_unicode(prompt, f"prompt {number}")
    return prompts


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a JSONL file: objects with "prompt", or just strings.

    A file of another name, or standard input, is one prompt unless it starts with { or ".
    """
    text = read_input(path)
    if not path.endswith(".jsonl") and not text.lstrip().startswith(("{", '"')):
        return [text.strip()]
    return [
        parse_record(line.encode(), f"{input_name(path)}:{number}", "prompt")["prompt"]
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]


@dataclass(frozen=True)
class Job:
    """The settings of one `dllmark generate`, checked where they are written.

    `key` names the model, unless `model` does, and with `marked` it also marks.
    """

    key: WatermarkKey | None
    marked: bool
    model: str | None
    strategy: str
    delta: float | None
    tokens: int
    steps: int
    block: int
    temperature: float
    top_p: float
    sampler: str
    order: str | None
    cache: str
    suppress_end: bool
    seed: int
    chat: bool
    watch: bool

    def __post_init__(self) -> None:
        check_length(self._sampler(), self.tokens)
        if self.seed < 0:
            raise InputError(f"seed is at least 0; got {self.seed}")

    def append(self, prompts: list[str], path: Path) -> int:
        """Append the texts of the prompts a file does not hold yet; return how many it held."""
        mark = self.key.identity.to_dict() if self.key and self.marked else None
        with only_writer_of(path):
            held, size = _held(prompts, mark, path)
            if held < len(prompts):
                for text in self.texts(prompts, held):
                    with writing(path):
                        size = append_line(path, size, json.dumps(text.to_dict()).encode() + b"\n")
        return held

    def texts(self, prompts: list[str], first: int = 0) -> Iterator[Generation]:
        """Yield the texts of prompts[first:].

        The batches and their seeds are those of a run from the first prompt on, so that a run
        goes on as if it had not been interrupted.
        """
        model, watermark = self._load()
        check_prompts(model, prompts, self.tokens, self.chat)
        for start in range(first - first % BATCH, len(prompts), BATCH):
            batch = prompts[start : start + BATCH]
            if self.watch:
                display = watched(model.tokenizer, f"text {start + 1} of {len(prompts)}")
            else:
                display = step_bar(f"texts {start + 1} to {start + len(batch)} of {len(prompts)}")
            with display as on_step:
                written = generate(
                    model, batch, watermark, self._sampler(),
                    tokens=self.tokens, chat=self.chat, seed=self.seed + (start << 32),
                    batch_size=BATCH, on_step=on_step,
                )  # fmt: skip
            yield from written[max(0, first - start) :]

    def _load(self) -> tuple[Model, Watermark | None]:
        """Return the model and its mark; what does not fit is told before weights are fetched."""
        name = self.model or (self.key.tokenizer.name if self.key else "embedded")
        source = str(Path(name).parent) if Path(name).name == "tokenizer.json" else name
        try:
            watermark = self._watermark(self.key, source) if self.key and self.marked else None
            return load_model(source), watermark
        except (ModelError, TokenizerError, OSError) as error:
            moved = "" if self.model else ". If it was moved, say with --model where to"
            raise ModelError(f"cannot load {source}: {error}{moved}") from None

    def _watermark(self, key: WatermarkKey, source: str) -> Watermark:
        """Return the key's mark for a model, if it is one for the model's tokenizer."""
        tokenizer = load_tokenizer(source)
        if tokenizer.fingerprint != key.tokenizer.fingerprint:
            raise MismatchError(
                f"key {key.id} is for the tokenizer {key.tokenizer.name}, but {source} has another "
                f"one: make a key for it with `dllmark keygen --model {source}`"
            )
        return Watermark(key, self.strategy, self.delta, tokenizer=tokenizer)

    def _sampler(self) -> Sampler:
        cache = cast(Kept, self.cache)
        if self.sampler == "llada":
            order = cast(LladaOrder, self.order or "low_confidence")
            return Llada(
                self.steps, self.block, self.temperature, self.top_p, order=order,
                suppress_end=self.suppress_end, cache=cache,
            )  # fmt: skip
        if self.sampler == "dream":
            if cache != "none":
                raise InputError("--cache works block by block: use it with llada or parallel")
            first = cast(DreamOrder, self.order or "entropy")
            return Dream(
                self.steps, first, self.temperature, self.top_p, suppress_end=self.suppress_end
            )
        if self.order:
            raise InputError("the parallel sampler has no --order: what is certain comes first")
        return Parallel(
            block_length=self.block, temperature=self.temperature, top_p=self.top_p,
            suppress_end=self.suppress_end, cache=cache,
        )  # fmt: skip


def _held(prompts: list[str], mark: dict[str, Any] | None, path: Path) -> tuple[int, int]:
    """Return how many prompts a file answers, and in how many bytes."""
    with reading(path):
        lines, size = whole_lines(path)
    for number, line in enumerate(lines, 1):
        try:
            record = parse_record(line, f"{path}:{number}", "prompt")
        except InputError:
            record = {}
        if number > len(prompts) or record.get("prompt") != prompts[number - 1]:
            problem = f"does not answer prompt {number} of this run"
        elif record.get("watermark") != mark:
            problem = "carries another mark than this run makes"
        else:
            continue
        raise InputError(f"{path}:{number} {problem}: give another output file, or remove this one")
    return len(lines), size
