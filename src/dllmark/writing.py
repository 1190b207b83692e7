"""Many prompts in, many texts out, in a file that an interrupted run goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.live import Live
from rich.progress import Progress

from dllmark.documents import open_input
from dllmark.errors import InputError
from dllmark.key import WatermarkKey
from dllmark.models.loading import load_model
from dllmark.sampling import Dream, Generation, Llada, Parallel, Sampler, check_prompts, generate
from dllmark.terminal import canvas_view, err
from dllmark.watermark import Watermark

BATCH = 8
"""Texts written together."""


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a JSONL file: objects with "prompt", or just strings.

    A file of another name, or standard input, is one prompt unless it starts with { or ".
    """
    with open_input(path) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: the prompts are not valid UTF-8") from None
    if not path.endswith(".jsonl") and not text.lstrip().startswith(("{", '"')):
        return [text.strip()]
    return [_prompt(line, f"{path}:{n}") for n, line in enumerate(text.splitlines(), 1) if line]


def _prompt(line: str, source: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        raise InputError(f"{source}: not a line of JSON") from None
    prompt = record.get("prompt") if isinstance(record, dict) else record
    if not isinstance(prompt, str):
        raise InputError(f'{source}: a line needs a string under "prompt"')
    return prompt


@dataclass(frozen=True)
class Job:
    """The settings of one `dllmark generate`: whose mark, which model, which sampler."""

    key: Path | None
    model: str | None
    strategy: str
    delta: float
    tokens: int
    steps: int
    block: int
    temperature: float
    sampler: str
    seed: int
    chat: bool
    watch: bool

    def append(self, prompts: list[str], path: Path) -> int:
        """Append the texts of the prompts a file does not hold yet; return how many it held.

        A last line that was cut off is removed and written again.
        """
        held = _held(prompts, path)
        with Progress(console=err) as bar:
            task = bar.add_task("texts", total=len(prompts), completed=held)
            for text in self.texts(prompts, held):
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(text.to_dict()) + "\n")
                bar.advance(task)
        return held

    def texts(self, prompts: list[str], first: int = 0) -> Iterator[Generation]:
        """Yield the texts of prompts[first:], written in batches with seeds of their own."""
        key = WatermarkKey.load(self.key) if self.key else None
        model = load_model(self.model or _home(key))
        watermark = None
        if key:
            watermark = Watermark(key, self.strategy, self.delta, tokenizer=model.tokenizer)
        sampler = self._sampler()
        check_prompts(model, prompts, self.tokens, self.chat)
        for start in range(first, len(prompts), BATCH):
            with Live(console=err, transient=True, refresh_per_second=20) as live:
                yield from generate(
                    model,
                    prompts[start : start + BATCH],
                    watermark,
                    sampler,
                    tokens=self.tokens,
                    chat=self.chat,
                    seed=self.seed + start,
                    batch_size=BATCH,
                    on_step=canvas_view(live, model.tokenizer) if self.watch else None,
                )

    def _sampler(self) -> Sampler:
        if self.sampler == "llada":
            return Llada(self.steps, self.block, self.temperature)
        if self.sampler == "dream":
            return Dream(self.steps, "entropy", self.temperature)
        return Parallel(block_length=self.block, temperature=self.temperature)


def _home(key: WatermarkKey | None) -> str:
    """Return the model a key was made for: the folder of its tokenizer, or its name."""
    name = key.tokenizer.name if key else "embedded"
    return str(Path(name).parent) if name.endswith("tokenizer.json") else name


def _held(prompts: list[str], path: Path) -> int:
    """Return how many prompts a file answers, after cutting off what is incomplete."""
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    whole = content[: content.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").splitlines()
    for number, line in enumerate(lines):
        if number >= len(prompts) or _prompt(line, f"{path}:{number + 1}") != prompts[number]:
            raise InputError(
                f"{path}:{number + 1} does not answer prompt {number + 1} of this run: "
                "give another output file, or remove this one"
            )
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return len(lines)
