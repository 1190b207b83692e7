"""`dllmark generate`: prompts in, texts out, in a file that an interrupted run goes on with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dllmark import terminal
from dllmark.commands.key_options import chosen_ring, marking_key, text_counter
from dllmark.commands.options import (
    JsonOption,
    KeyringOption,
    LabelOption,
    OneKeyOption,
    PayloadBitsOption,
    PayloadListOption,
    PayloadOption,
    SeedOption,
    StrategyOption,
    check_seed,
)
from dllmark.commands.payload_options import Carried, carried_payload
from dllmark.commands.prompts import gather_prompts
from dllmark.commands.sampler_options import (
    BlockOption,
    CacheOption,
    CfgScaleOption,
    EditThresholdOption,
    NoApartOption,
    NoRepeatOption,
    OrderOption,
    SamplerOption,
    StepsOption,
    SuppressEndOption,
    TemperatureOption,
    ThresholdOption,
    TopKOption,
    TopPOption,
    make_sampler,
)
from dllmark.commands.watch import watched
from dllmark.errors import InputError, MismatchError, ModelError, TokenizerError
from dllmark.files import (
    append_line,
    only_writer_of,
    parse_record,
    reading,
    whole_lines,
    writing,
)
from dllmark.marking.strategies import Strategy, check_delta
from dllmark.sampling.settings import (
    TEMPERATURE,
    TOKENS,
    Sampler,
    check_length,
    choose_strategy,
)

if TYPE_CHECKING:
    from dllmark.detection.detector import Detector
    from dllmark.marking.watermark import Watermark
    from dllmark.models.loading import Model
    from dllmark.relation.key import WatermarkKey
    from dllmark.sampling.texts import Generation

BATCH = 8
"""Texts written together."""


def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to write about; - reads it from standard input.", show_default=False
        ),
    ] = None,
    key: OneKeyOption = None,
    keyring: KeyringOption = None,
    label: LabelOption = None,
    no_watermark: Annotated[
        bool, typer.Option("--no-watermark", help="Write without a mark, to compare.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="`embedded`, a folder, or a model on the hub. Without it, the key's model."
        ),
    ] = None,
    strategy: StrategyOption = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="How strongly to favour green pairs. Without it, the strategy's default."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to write at most.")] = TOKENS,
    steps: StepsOption = None,
    block: BlockOption = None,
    temperature: TemperatureOption = TEMPERATURE,
    top_p: TopPOption = 1.0,
    top_k: TopKOption = None,
    cfg_scale: CfgScaleOption = None,
    sampler: SamplerOption = "llada",
    order: OrderOption = None,
    cache: CacheOption = None,
    no_apart: NoApartOption = False,
    threshold: ThresholdOption = None,
    edit_threshold: EditThresholdOption = None,
    no_repeat_ngram: NoRepeatOption = None,
    suppress_end: SuppressEndOption = False,
    seed: SeedOption = 0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Continue the prompt instead of answering it.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Append the texts to this file as JSONL; the same command again continues it.",
        ),
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option("--prompts", help='JSONL with a "prompt" in each line, or -.')
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show the text while it is written, and then the verdict."),
    ] = False,
    payload: PayloadOption = None,
    payload_bits: PayloadBitsOption = None,
    payloads: PayloadListOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write texts with a diffusion model, marked with the key."""
    carried = carried_payload(payload, payload_bits, payloads, marked=not no_watermark)
    ring = chosen_ring(key, keyring, label)
    loaded = marking_key(key, ring, label, model)
    source = model_source(model, loaded)
    made = make_sampler(sampler, tokens, {
        "steps": steps, "block": block, "temperature": temperature, "top-p": top_p,
        "top-k": top_k, "cfg-scale": cfg_scale, "order": order, "cache": cache,
        "no-apart": False if no_apart else None, "threshold": threshold,
        "edit-threshold": edit_threshold, "suppress-end": suppress_end,
        "no-repeat-ngram": no_repeat_ngram,
    }, source)  # fmt: skip
    if no_watermark:
        mark = None
    elif loaded:
        mark = MarkSettings.of(loaded, strategy, delta, made, carried)
    else:
        raise InputError("give a key to mark with (--key or --keyring), or --no-watermark")
    given = gather_prompts(prompts or [], prompt_file)
    run = TextRun(
        source, mark, made, tokens=tokens, chat=not plain, seed=seed,
        watch=watch, seen_by=mark.key if mark else loaded,
        on_written=text_counter(None if no_watermark else ring, loaded),
    )  # fmt: skip
    if output is None:
        for text in run.texts(given):
            terminal.print_json(run.record(text)) if as_json else run.show(text)
        return
    present = run.append(given, output)
    written = len(given) - present
    if as_json:
        terminal.print_json({"path": str(output), "texts": written, "already there": present})
    else:
        terminal.err.print(f"{output}: {written} written, {present} already there")


def model_source(model: str | None, key: WatermarkKey | None) -> str:
    """Return what to load: the model that was named, or the one that a key was made for."""
    from dllmark.relation.tokenizer import source_of_model

    return source_of_model(model or (key.tokenizer.name if key else "embedded"))


@dataclass(frozen=True)
class MarkSettings:
    """What a mark is made with."""

    key: WatermarkKey
    strategy: Strategy
    delta: float
    carried: Carried | None = None

    @classmethod
    def of(
        cls,
        key: WatermarkKey,
        strategy: str | None,
        delta: float | None,
        sampler: Sampler,
        carried: Carried | None = None,
    ) -> MarkSettings:
        """Return the settings of a strategy's name, or of the sampler's own, and of its own δ."""
        known = choose_strategy(strategy, sampler, payload=carried is not None)
        key = carried.key(key) if carried else key
        mark = cls(key, known, known.default_delta if delta is None else delta, carried)
        check_delta(mark.delta)
        return mark


@dataclass(frozen=True)
class TextRun:
    """All that one `dllmark generate` writes with but its prompts, checked where it is made.

    Texts that are watched have the colours and the verdict of the key they are `seen_by`.
    """

    model: str
    mark: MarkSettings | None
    sampler: Sampler
    tokens: int = TOKENS
    chat: bool = True
    seed: int = 0
    watch: bool = False
    seen_by: WatermarkKey | None = None
    on_written: Callable[[int], None] = lambda texts: None

    def __post_init__(self) -> None:
        check_length(self.sampler, self.tokens)
        check_seed(self.seed)

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the text of a prompt but the key; of a model's folder the name only."""
        local = os.path.exists(self.model)
        return {
            "model": Path(self.model).resolve().name if local else self.model,
            "strategy": self.mark.strategy.name if self.mark else None,
            "delta": self.mark.delta if self.mark else None,
            "sampler": type(self.sampler).__name__.lower(),
            **asdict(self.sampler),
            "tokens": self.tokens,
            "chat": self.chat,
            "seed": self.seed,
            **(self.mark.carried.facts(self.mark.key) if self.mark and self.mark.carried else {}),
        }

    def record(self, text: Generation) -> dict[str, Any]:
        """Return a text with the settings it was written with, as JSON values."""
        return {**text.to_dict(), "settings": self.settings}

    @cached_property
    def detector(self) -> Detector | None:
        """The detector whose colours and verdict are shown, where texts are watched."""
        from dllmark.detection.detector import Detector
        from dllmark.relation.tokenizer import load_tokenizer

        if not (self.watch and self.seen_by):
            return None
        return Detector(self.seen_by, load_tokenizer(self.model))

    def show(self, text: Generation) -> None:
        """Print a text: as it is, or to the terminal of whoever watches with its colours."""
        if self.detector and terminal.out.is_terminal:
            tokens = [asdict(token) for token in self.detector.explain(text.text)]
            terminal.print_details(text.text, {"tokens": tokens})
        else:
            terminal.print_text(text.text)

    def append(self, prompts: list[str], path: Path) -> int:
        """Append the texts of the prompts that a file lacks; return how many it had."""
        with only_writer_of(path):
            present, size = self._present(prompts, path)
            if present < len(prompts):
                for text in self.texts(prompts, present):
                    line = json.dumps(self.record(text)).encode() + b"\n"
                    with writing(path):
                        size = append_line(path, size, line)
        return present

    def _present(self, prompts: list[str], path: Path) -> tuple[int, int]:
        """Return how many prompts a file answers, and in how many bytes."""
        with reading(path):
            lines, size = whole_lines(path)
        for number, line in enumerate(lines, 1):
            record = _record(line)
            if number > len(prompts) or record.get("prompt") != prompts[number - 1]:
                problem = f"does not answer prompt {number} of this run"
            else:
                problem = self._difference(record)
            if problem:
                raise InputError(
                    f"{path}:{number} {problem}: give another output file, or remove this one"
                )
        return len(lines), size

    def _difference(self, record: dict[str, Any]) -> str:
        """Return how a text was written otherwise than this run writes, or nothing."""
        if record.get("watermark") != (self.mark.key.identity.to_dict() if self.mark else None):
            return "carries another mark than this run makes"
        before = record.get("settings")
        if not isinstance(before, dict):
            return "does not say with which settings it was written"
        for name, now in self.settings.items():
            if before.get(name) != now:
                return f"was written with {name} {before.get(name)!r}, and this run has {now!r}"
        return ""

    def texts(self, prompts: list[str], first: int = 0) -> Iterator[Generation]:
        """Yield the texts of prompts[first:].

        The batches and their seeds are those of a run from the first prompt on, so that a run
        goes on as if it had not been interrupted.
        """
        with terminal.working("loading torch"):
            from dllmark.sampling.texts import check_prompts, generate

        model, watermark = self._load()
        check_prompts(model, prompts, self.tokens, self.chat)
        for start in range(first - first % BATCH, len(prompts), BATCH):
            batch = prompts[start : start + BATCH]
            if self.watch:
                title = f"text {start + 1} of {len(prompts)}"
                display = watched(model.tokenizer, [title], self.detector)
            else:
                last = start + len(batch)
                which = f"text {last}" if len(batch) == 1 else f"texts {start + 1} to {last}"
                display = terminal.step_bar(f"writing {which} of {len(prompts)}")
            with display as on_step:
                written = generate(
                    model, batch, watermark, self.sampler,
                    tokens=self.tokens, chat=self.chat, seed=self.seed + (start << 32),
                    batch_size=BATCH, on_step=on_step,
                )  # fmt: skip
            new = written[max(0, first - start) :]
            self.on_written(len(new))
            for text in new:
                yield text
                if self.detector:
                    terminal.print_verdict(self.detector.detect(text.text), to=terminal.err)

    def _load(self) -> tuple[Model, Watermark | None]:
        """Return the model and its mark; what does not fit is told before weights are fetched."""
        from dllmark.models.loading import load_model

        try:
            with terminal.working(f"loading {self.model}"):
                watermark = self._watermark(self.mark) if self.mark else None
                return load_model(self.model), watermark
        except (ModelError, TokenizerError, OSError) as error:
            raise ModelError(
                f"cannot load {self.model}: {error}. If it is elsewhere, name its folder with "
                "--model"
            ) from None

    def _watermark(self, mark: MarkSettings) -> Watermark:
        """Return the mark for the model, if the key is one for the model's tokenizer."""
        from dllmark.marking.watermark import Watermark
        from dllmark.relation.source import check_version
        from dllmark.relation.tokenizer import load_tokenizer

        tokenizer, key = load_tokenizer(self.model), mark.key
        check_version(key, tokenizer)
        if tokenizer.fingerprint != key.tokenizer.fingerprint:
            raise MismatchError(
                f"key {key.id} is for the tokenizer {key.tokenizer.name}, but {self.model} has "
                f"another one: make a key for it with `dllmark keygen --model {self.model}`"
            )
        return Watermark(key, mark.strategy.name, mark.delta, tokenizer=tokenizer)


def _record(line: bytes) -> dict[str, Any]:
    """Return the record in a line, which is empty if there is none."""
    try:
        return parse_record(line, "", "prompt")
    except InputError:
        return {}
