"""`dllmark report`: what a mark detects, costs and withstands, on one's own model and texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dllmark.commands.generate import model_source
from dllmark.commands.key_options import one_key
from dllmark.commands.options import JsonOption, OneKeyOption, StrategyOption
from dllmark.commands.prompts import gather_prompts
from dllmark.commands.reproduce import OnBatch, command_line, stage_progress
from dllmark.errors import InputError, MismatchError
from dllmark.marking.strategies import check_delta
from dllmark.sampling.settings import (
    TEMPERATURE,
    check_temperature,
    choose_strategy,
    default_llada,
    steps_for,
)
from dllmark.terminal import err, print_json, print_text

if TYPE_CHECKING:
    from dllmark.detection.detector import Detector
    from dllmark.experiments.evaluation.inputs import InputFile
    from dllmark.experiments.evaluation.run import Texts
    from dllmark.experiments.settings import Dataset, Protocol, Setting
    from dllmark.relation.key import WatermarkKey
    from dllmark.relation.tokenizer import Tokenizer

TOKENS, QUICK_TOKENS = 416, 112
"""What is written of each text: 400 tokens, and some for those that its text loses as ids again."""

QUICK_PROMPTS = 10
"""Prompts of a quick report: with a marked and an unmarked text each, minutes on two cores."""


def report(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="A folder for report.html, report.json and the texts; a rerun "
            "goes on there.", show_default=False,
        ),
    ],
    nulls: Annotated[
        list[str],
        typer.Option(
            help='JSONL of texts without a mark, best like those you will test; "kind" or '
            '"source" in a line names its family. Repeatable.', show_default=False,
        ),
    ],
    key: OneKeyOption = None,
    model: Annotated[
        str | None,
        typer.Option(help="`embedded`, a folder, or a model on the hub; else the key's own. With "
            "--marked only its tokenizer is used."),
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help='JSONL with "prompt" in each line, for the model.')
    ] = None,
    marked: Annotated[
        str | None, typer.Option(help="JSONL of marked texts, in place of a model.")
    ] = None,
    unmarked: Annotated[
        str | None,
        typer.Option(help="JSONL of unmarked texts, beside --marked, to say what the mark costs."),
    ] = None,
    attacked: Annotated[
        list[str] | None,
        typer.Option(
            help="JSONL of the marked texts after `dllmark attack`, say paraphrases. Repeatable."
        ),
    ] = None,
    fpr: Annotated[
        float, typer.Option(help="The false-positive rate of the report's verdict.")
    ] = 0.01,
    strategy: StrategyOption = None,
    delta: Annotated[
        float | None, typer.Option(help="The bias towards green pairs; else the strategy's own.")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(help="How much is left to chance: 0 always takes the likeliest token."),
    ] = TEMPERATURE,
    tokens: Annotated[
        int | None,
        typer.Option(help=f"Tokens written for each prompt; else {TOKENS}, or {QUICK_TOKENS} "
                     "with --quick."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help=f"Use the first prompts only; else all, or {QUICK_PROMPTS} with "
                     "--quick."),
    ] = None,
    suppress_end: Annotated[
        bool, typer.Option("--suppress-end", help="Write all the tokens: no text ends earlier.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Continue the prompts as text, do not answer them.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Texts written together.")] = 8,
    device: Annotated[
        str, typer.Option(help="Where the model writes, `auto`, `cpu` or `cuda`.")
    ] = "auto",
    judge: Annotated[
        str,
        typer.Option(help="For perplexity: `smollm2`, a folder, a GGUF file, a hub id, or `none`."),
    ] = "smollm2",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few short texts: minutes, and wide intervals.")
    ] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure what a mark detects, costs and withstands, and write a page that says so.

    The model writes a marked and an unmarked text for each prompt; the nulls show how often texts
    without the mark are taken for marked. The page is one file that opens offline, and report.json
    holds the same. Each text is kept when it is written: the same command goes on where it was
    stopped. Exit status: 0 when the report is written, whatever it says.
    """
    from dllmark.detection.detector import Detector
    from dllmark.experiments.evaluation.inputs import read_attacked, read_nulls
    from dllmark.experiments.evaluation.run import evaluate, publish
    from dllmark.files import only_writer_in

    _check_sources(prompts, marked, unmarked)
    for name, given in (
        ("delta", delta is not None),
        ("tokens", tokens),
        ("samples", samples),
        ("suppress-end", suppress_end),
        ("plain", plain),
        ("quick", quick),
    ):
        if given and marked is not None:
            raise InputError(f"--{name} is for --prompts: marked texts are taken as they are")
    for name, number in (("batch", batch), ("samples", samples), ("tokens", tokens)):
        if number is not None and number < 1:
            raise InputError(f"{name} is at least 1; got {number}")
    chosen = one_key(key, "report")
    source = model_source(model, chosen)
    detector = Detector(chosen, _tokenizer(chosen, source if prompts else model), fpr=fpr)
    families, inputs = read_nulls(nulls)
    rewritten = [read_attacked(path) for path in attacked or ()]
    judged = None if judge == "none" else judge
    with only_writer_in(output), stage_progress() as on_stage:
        if marked is not None:
            texts, files = _given(marked, unmarked, detector, judged)
        else:
            assert prompts is not None
            dataset, file = _Prompts(
                prompts, not plain, samples or (QUICK_PROMPTS if quick else None)
            ).read()
            long = tokens or (QUICK_TOKENS if quick else TOKENS)
            protocol = _protocol(source, len(dataset.prompts), long, suppress_end)
            setting = _setting(source, protocol, strategy, delta, chosen.gamma, temperature)
            parts = _Lab(
                source, chosen, detector.tokenizer, output, judged, batch, device, on_stage
            )
            texts, model_files = _written(dataset, protocol, setting, parts)
            files = [file, *model_files]
        made = evaluate(
            detector, texts, families, [one for one, _ in rewritten],
            [*files, *inputs, *(file for _, file in rewritten)], command_line(), on_stage,
        )  # fmt: skip
        paths = publish(made, output)
    print_json(made.to_dict()) if as_json else print_text(made.verdict.text)
    err.print("written: " + ", ".join(map(str, paths)))


@dataclass(frozen=True)
class _Prompts:
    """Which prompts are used, and how."""

    path: str
    chat: bool
    most: int | None

    def read(self) -> tuple[Dataset, InputFile]:
        """Return the prompts to write for, and what the report says of their file."""
        from dllmark.experiments.evaluation.inputs import input_file
        from dllmark.experiments.settings import Dataset

        if self.path == "-":
            raise InputError("a report names its inputs by their hashes: give files, not -")
        prompts = gather_prompts([], self.path)
        used = prompts[: self.most]
        dataset = Dataset("answered" if self.chat else "continued", used, [], self.chat)
        return dataset, input_file("prompts", self.path, len(prompts))


@dataclass(frozen=True)
class _Lab:
    """What a lab is made of beside its prompts and protocol."""

    model: str
    key: WatermarkKey
    tokenizer: Tokenizer
    folder: Path
    judge: str | None
    batch: int
    device: str
    on_stage: OnBatch


def _protocol(model: str, samples: int, tokens: int, suppress_end: bool) -> Protocol:
    """Return how much is written, and as `dllmark generate` writes with that model."""
    from dllmark.experiments.settings import Protocol

    sampler = default_llada(model, tokens)
    return Protocol(
        samples, tokens, scored=2, block=sampler.block_length, suppress_end=suppress_end,
        cache=sampler.cache, apart=sampler.apart,
        no_repeat_ngram=sampler.no_repeat_ngram,
    )  # fmt: skip


def _written(
    dataset: Dataset, protocol: Protocol, setting: Setting, parts: _Lab
) -> tuple[Texts, list[InputFile]]:
    """Have the model write what the folder lacks."""
    from dllmark.experiments.batches import LocalWriter
    from dllmark.experiments.evaluation.run import written_texts
    from dllmark.experiments.lab import Lab
    from dllmark.models.loading import load_model, model_files

    lab = Lab(
        parts.model, parts.tokenizer, [dataset], parts.folder, protocol,
        LocalWriter(lambda: load_model(parts.model, device=parts.device)), parts.judge, parts.batch,
        command=command_line(), on_batch=parts.on_stage, own_key=parts.key,
    )  # fmt: skip
    return written_texts(lab, dataset, setting, model_files(parts.model))


def _given(
    marked: str, unmarked: str | None, detector: Detector, judge: str | None
) -> tuple[Texts, list[InputFile]]:
    """Read texts that were written before."""
    from dllmark.experiments.evaluation.inputs import read_marked, read_unmarked
    from dllmark.experiments.evaluation.run import given_texts

    samples, file, settings = read_marked(marked, detector.identity)
    others, more = read_unmarked(unmarked) if unmarked else ([], None)
    return given_texts(samples, others, settings, judge), [file, *([more] if more else [])]


def _check_sources(prompts: str | None, marked: str | None, unmarked: str | None) -> None:
    """Raise `InputError` unless it is clear where the marked texts come from."""
    if prompts is None and marked is None:
        raise InputError(
            "give prompts for the model to write for (--prompts FILE), or marked texts "
            "(--marked FILE)"
        )
    if prompts is not None and marked is not None:
        raise InputError("give --prompts or --marked, not both")
    if unmarked is not None and marked is None:
        raise InputError("--unmarked goes with --marked: for --prompts the model writes them")


def _tokenizer(key: WatermarkKey, source: str | None) -> Tokenizer:
    """Return the tokenizer of a model, or where none is named the key's; it must be the key's."""
    from dllmark.detection.any_key import key_tokenizers
    from dllmark.relation.tokenizer import load_tokenizer

    try:
        [tokenizer] = key_tokenizers([key], [load_tokenizer(source)] if source else []).values()
    except MismatchError:
        raise MismatchError(
            f"key {key.id} is for the tokenizer {key.tokenizer.name}, but {source} has another "
            f"one: make a key for it with `dllmark keygen --model {source}`"
        ) from None
    return tokenizer


def _setting(
    model: str,
    protocol: Protocol,
    strategy: str | None,
    delta: float | None,
    gamma: float,
    temperature: float,
) -> Setting:
    """Return how a model's texts are marked: where nothing else is said, as its sampler suits."""
    from dllmark.experiments.batches import sampler_of
    from dllmark.experiments.settings import Setting
    from dllmark.models.loading import read_family

    check_temperature(temperature)
    tokens = protocol.tokens
    per_step = tokens // steps_for(default_llada(model, tokens), tokens)
    unmarked = Setting(None, temperature=temperature, per_step=per_step)
    known = choose_strategy(strategy, sampler_of(read_family(model), protocol, unmarked))
    strength = known.default_delta if delta is None else delta
    check_delta(strength)
    return Setting(known.name, gamma, strength, temperature, per_step)
