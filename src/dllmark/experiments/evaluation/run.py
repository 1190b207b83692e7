"""Making a report: the texts are written or read, measured, and the results put down."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.detection.detector import Detector
from dllmark.errors import InputError
from dllmark.experiments.batches import processor
from dllmark.experiments.evaluation.attacks import withstood
from dllmark.experiments.evaluation.cost import Cost, StepTime, compared, repetition
from dllmark.experiments.evaluation.inputs import Attacked, InputFile, Sample, paired
from dllmark.experiments.evaluation.measures import (
    FEWEST,
    check_lengths,
    detections,
    false_positives,
)
from dllmark.experiments.evaluation.page import page
from dllmark.experiments.evaluation.record import Evaluation
from dllmark.experiments.evaluation.weights import check_model, hashed_model
from dllmark.experiments.evaluation.words import conclude, not_tested
from dllmark.experiments.lab import Lab
from dllmark.experiments.p_values import Floats
from dllmark.experiments.runs import Written, revision, step_seconds, summary, today
from dllmark.experiments.settings import Dataset, Setting
from dllmark.files import atomic_write, writing
from dllmark.quality.perplexity import load_judge, perplexities

OnStage = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Texts:
    """Texts of a model, marked and not, and what is known of how they were written.

    `perplexity` are those of the pairs, unmarked and marked. `why_not` says what is missing, and
    `made` and `settings` are for people.
    """

    marked: list[Sample]
    unmarked: list[Sample]
    settings: dict[str, Any]
    judge: str | None = None
    perplexity: tuple[Floats, Floats] | None = None
    step: StepTime | None = None
    made: dict[str, str] = field(default_factory=dict)
    why_not: tuple[str, ...] = ()
    from_files: bool = False


def written_texts(
    lab: Lab, dataset: Dataset, setting: Setting, model_files: Sequence[Path]
) -> tuple[Texts, list[InputFile]]:
    """Have a model write what its folder lacks, and return all texts with their perplexities.

    Also return what the report says of the model's files, those that wrote the texts.
    """
    if len(dataset.prompts) < FEWEST:
        raise InputError(
            f"{len(dataset.prompts)} prompts are too few to say anything: give at least "
            f"{FEWEST}, better 100"
        )
    model = hashed_model(
        model_files, lambda done, total: lab.on_batch("hashing the model (MB)", done, total)
    )
    check_model(lab.folder, model)
    lab.on_batch("writing", 0, len(dataset.prompts))  # loading the model comes first
    unmarked = lab.texts(dataset, setting.unmarked)
    check_lengths([len(text["ids"]) for text in unmarked], "unmarked")  # before the others
    sides = [
        [Sample(text["text"], text["prompt"]) for text in lab.texts(dataset, one)]
        for one in (setting, setting.unmarked)
    ]
    numbers = list(range(len(dataset.prompts)))
    notes = lab.notes([setting])
    step = _step_time(notes, setting, lab.protocol.tokens // setting.per_step)
    why_not = [] if step else ["The time of a step: the texts were not all written alike."]
    if lab.judge is None:
        why_not.append("Perplexity: there was no judge.")
    settings = {
        "model": lab.model, "sampler": "the model's own", "strategy": setting.strategy,
        "δ": setting.delta, "temperature": setting.temperature,
        "tokens a text": lab.protocol.tokens, "tokens a step": setting.per_step,
        "block": lab.protocol.block, "cache": lab.protocol.cache, "apart": lab.protocol.apart,
        "no_repeat_ngram": lab.protocol.no_repeat_ngram,
        "texts may end early": not lab.protocol.suppress_end,
        "prompts": f"{len(numbers)}, {dataset.name}", "batch": lab.batch_size,
    }  # fmt: skip
    texts = Texts(
        sides[0], sides[1], settings, lab.judge,
        (lab.perplexity(dataset, setting.unmarked, numbers),
         lab.perplexity(dataset, setting, numbers)) if lab.judge else None,
        step, {"texts": summary(notes)}, tuple(why_not),
    )  # fmt: skip
    return texts, model


def _step_time(notes: list[Written], setting: Setting, steps: int) -> StepTime | None:
    """Return how long steps took, if all texts were written alike."""
    ways = {(note.batch, note.hardware) for note in notes}
    clean, marked = (
        step_seconds([note for note in notes if note.setting == one.slug], steps)
        for one in (setting.unmarked, setting)
    )
    if clean is None or marked is None or len(ways) > 1:
        return None
    return StepTime(clean, marked, *ways.pop())


def given_texts(
    marked: list[Sample], unmarked: list[Sample], settings: dict[str, Any], judge: str | None
) -> Texts:
    """Return texts that were read from files, with the perplexities of those that are pairs.

    `settings` are what the files say of how they were written.
    """
    if len(marked) < FEWEST:
        raise InputError(
            f"{len(marked)} marked texts are too few to say anything: give at least "
            f"{FEWEST}, better 100"
        )
    pairs, why_not = paired(marked, unmarked), ["The time of a step: the texts were given."]
    if not pairs:
        why_not.append(_no_pairs(marked, unmarked))
    elif judge is None:
        why_not.append("Perplexity: there was no judge.")
    measured = None
    if pairs and judge:
        loaded = load_judge(judge)
        clean, after = (
            np.array(perplexities(loaded, [(pair[side].prompt or "", pair[side].text)
                                           for pair in pairs]))
            for side in (0, 1)
        )  # fmt: skip
        measured = clean, after
    return Texts(
        marked, unmarked, settings or {"model": "the files do not say"}, judge, measured,
        why_not=tuple(why_not), from_files=True,
    )  # fmt: skip


def _no_pairs(marked: list[Sample], unmarked: list[Sample]) -> str:
    """Return why perplexity and repetition have nothing to compare."""
    if not unmarked:
        reason = "no unmarked texts of the model were given (--unmarked)"
    elif all(one.prompt is None for one in marked):
        reason = 'the marked texts have no prompts ("prompt" in each line)'
    elif all(one.prompt is None for one in unmarked):
        reason = 'the unmarked texts have no prompts ("prompt" in each line)'
    else:
        reason = "no prompt of a marked text is one of an unmarked text"
    return f"What the mark costs: {reason}, so there is nothing to compare."


def evaluate(
    detector: Detector,
    texts: Texts,
    families: dict[str, list[str]],
    attacked: list[Attacked],
    inputs: list[InputFile],
    command: str,
    on_stage: OnStage = lambda name, done, total: None,
) -> Evaluation:
    """Measure a mark, and conclude."""
    marked, unmarked = ([one.text for one in side] for side in (texts.marked, texts.unmarked))
    found = detections(detector, marked)
    nulls = false_positives(
        detector, families, unmarked, lambda done, total: on_stage("scoring nulls", done, total)
    )
    humans = [text for family in families.values() for text in family]
    attacks = withstood(
        detector, marked, humans, attacked, lambda done, total: on_stage("attacking", done, total)
    )
    cost = _cost(detector, texts)
    key, rate = detector.identity, detector.fpr
    return Evaluation(
        conclude(key.key_id, rate, nulls, found, cost, attacks), rate, nulls, found, cost,
        tuple(attacks), tuple(not_tested(nulls, found, cost, attacks, texts.from_files)),
        {
            "key": key.key_id, "scheme": key.scheme, "γ": key.gamma,
            "tokenizer": f"{detector.tokenizer.name}, {key.tokenizer}",
            "false-positive rate": rate, "scoring": detector.scoring, **texts.settings,
        },
        tuple(inputs),
        {
            "date": today(), "dllmark": revision(), "python": platform.python_version(),
            "numpy": version("numpy"), "tokenizers": version("tokenizers"),
            "report made on": processor(), **texts.made, "command": command,
        },
    )  # fmt: skip


def _cost(detector: Detector, texts: Texts) -> Cost:
    pairs = paired(texts.marked, texts.unmarked)
    perplexity = compared(*texts.perplexity, ratio=True) if texts.perplexity else None
    return Cost(
        len(pairs), texts.judge, perplexity, *repetition(detector.tokenizer, pairs), texts.step,
        texts.why_not,
    )  # fmt: skip


def publish(report: Evaluation, folder: Path) -> list[Path]:
    """Write the page and the JSON into a folder, each when it is complete."""
    contents = {
        "report.html": page(report),
        "report.json": json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n",
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with atomic_write(folder / name) as file:
                file.write(content.encode())
    return [folder / name for name in contents]
