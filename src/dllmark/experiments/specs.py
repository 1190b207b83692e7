"""The tables and figures: which settings each compares, and what it reports of them.

A spec takes a `Lab` and returns a `Report`; what the lab has written for one it has for the others.
First it has all its texts written, in one go: several workers then share all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.attacks.records import Answers, complete
from dllmark.attacks.records import Record as Text
from dllmark.attacks.tokens import TOKEN_ATTACKS, ordinary
from dllmark.detection.detector import Detector, Scoring, scored_text
from dllmark.detection.stats import threshold
from dllmark.experiments import paper
from dllmark.experiments.batches import TextRecord
from dllmark.experiments.lab import CountedPrompts, Floats, Lab
from dllmark.experiments.p_values import p_by_length
from dllmark.experiments.report import Curve, Report, Row, rate_cells
from dllmark.experiments.runs import summary
from dllmark.experiments.settings import RATES, SCORINGS, Dataset, Setting
from dllmark.files import whole_lines
from dllmark.marking.strategies import BIASES, STRATEGIES

GAMMAS = (0.25, 0.5, 0.75)
DELTAS = (1.0, 2.0, 5.0, 10.0)
ATTACK_RATIOS = (0.1, 0.2)
SWEEP = (1.0, 2.0, 3.0, 4.0, 6.0)
LENGTHS = (25, 50, 100, 150, 200, 256, 400)
LENGTH_RATES = (0.01, 0.0001)
ORDER = "low_confidence"
"""Of the frontier and the lengths: what is `joint` is for LLaDA's."""


@dataclass(frozen=True)
class Paraphraser:
    """Another model that rewrites texts, and what is noted of it with each."""

    attack: dict[str, Any]
    answers: Answers

    def answers_to(self, records: list[Text]) -> Answers:
        """Return who rewrites some of these: each text by itself, whatever the others are."""
        return self.answers


def table1(lab: Lab) -> Report:
    """Detection of each strategy (the paper's Table 1)."""
    settings = [Setting(name, delta=lab.protocol.delta) for name in BIASES]
    report = start_report(lab, "Table 1: detection of the strategies", settings)
    their_model = paper.table_1_model(lab.model)
    for dataset in lab.datasets:
        kept = lab.kept(dataset, *settings)
        for scoring in SCORINGS:
            for setting in settings:
                row: Row = {
                    "prompts": dataset.name,
                    "scoring": scoring,
                    "strategy": setting.strategy,
                }
                row |= _detected(lab, dataset, setting, kept, scoring)
                theirs = paper.TABLE_1[their_model].get((dataset.name, str(setting.strategy)))
                report.add(row, theirs if setting.delta == paper.DELTA else None, their_model)
    return report


def table2(lab: Lab, paraphrasers: dict[str, Paraphraser | None]) -> Report:
    """Detection after attacks (Table 2); a paraphraser of None was not run."""
    settings = [Setting(name, delta=lab.protocol.delta) for name in paper.METHODS]
    report = start_report(lab, "Table 2: robustness against attacks", settings)
    plans: list[tuple[str, float]] = [(a, r) for a in TOKEN_ATTACKS for r in ATTACK_RATIOS]
    for dataset in lab.datasets:
        kept = lab.kept(dataset, *settings)
        for attack, ratio in [*plans, *((name, 0.0) for name in paraphrasers)]:
            for setting in settings:
                row: Row = {"prompts": dataset.name, "attack": attack, "ratio": ratio or None,
                            "strategy": setting.strategy}  # fmt: skip
                edited = _attacked(lab, dataset, setting, kept, attack, ratio, paraphrasers)
                if edited:
                    row |= _detected(lab, dataset, setting, kept, "unique", edited)
                else:
                    row |= {"texts": "not run"}
                theirs = paper.TABLE_2[attack, ratio, str(setting.strategy)]
                report.add(row, theirs if setting.delta == paper.DELTA else None, "the paper")
    return report


def table3(lab: Lab) -> Report:
    """Detection and perplexity by γ and δ (Table 3)."""
    report = start_report(lab, "Table 3: γ and δ", _grid(), judged=True)
    for dataset in lab.datasets:
        for setting in _grid():
            kept = lab.kept(dataset, setting)
            row: Row = {"prompts": dataset.name, "γ": setting.gamma, "δ": setting.delta}
            row |= _detected(lab, dataset, setting, kept, "unique")
            row["median PPL"] = _median(lab.perplexity(dataset, setting, kept.numbers))
            theirs, their_ppl = paper.TABLE_3[dataset.name, setting.gamma, setting.delta]
            report.add(row | {"PPL, the paper": their_ppl}, theirs, "LLaDA-8B-Instruct")
    return report


def figure2(lab: Lab) -> Report:
    """How z grows with the length, by γ and δ (Figure 2)."""
    report = start_report(lab, "Figure 2: z against length", _grid(), ("tokens", "mean z"))
    lengths = range(10, lab.protocol.scored + 1, 10)
    for dataset in lab.datasets:
        for setting in _grid():
            kept = lab.kept(dataset, setting)
            texts = _pick(lab.texts(dataset, setting), kept.numbers)
            detector = lab.detector(setting.gamma)
            means = [float(lab.z(texts, detector, length).mean()) for length in lengths]
            report.curves.append(
                Curve(f"{dataset.name}, γ {setting.gamma:g}", f"δ {setting.delta:g}",
                      list(zip(map(float, lengths), means, strict=True)))
            )  # fmt: skip
            for length, mean in zip(lengths, means, strict=True):
                report.add({"prompts": dataset.name, "γ": setting.gamma, "δ": setting.delta,
                            "tokens": length, "mean z": mean} | kept.cells)  # fmt: skip
    return report


def figure3(lab: Lab) -> Report:
    """How z and perplexity go together, by γ and δ (Figure 3)."""
    axes = ("median PPL", "mean z")
    report = start_report(lab, "Figure 3: z against perplexity", _grid(), axes, judged=True)
    for dataset in lab.datasets:
        for gamma in GAMMAS:
            marked = [setting for setting in _grid() if setting.gamma == gamma]
            points = []
            for setting in [marked[0].unmarked, *marked]:
                kept = lab.kept(dataset, setting)
                texts = _pick(lab.texts(dataset, setting), kept.numbers)
                z = float(lab.z(texts, lab.detector(gamma)).mean())
                ppl = _median(lab.perplexity(dataset, setting, kept.numbers))
                points.append((ppl, z))
                delta = setting.delta if setting.strategy else 0.0
                report.add({"prompts": dataset.name, "γ": gamma, "δ": delta,
                            "mean z": z, "median PPL": ppl} | kept.cells)  # fmt: skip
            report.curves.append(Curve(dataset.name, f"γ {gamma:g}", points))
    return report


def examples(lab: Lab) -> Report:
    """Two texts of each kind, clean and marked, and what people wrote (the appendix's table)."""
    setting, detector = Setting(paper.BEST, delta=lab.protocol.delta), lab.detector(0.5)
    report = start_report(lab, "Examples", [setting], judged=True)
    for dataset in lab.datasets:
        for number in lab.kept(dataset, setting).numbers[:2]:
            row: Row = {"prompts": dataset.name, "prompt": dataset.prompts[number],
                        "people wrote": dataset.truths[number]}  # fmt: skip
            for name, one in (("clean", setting.unmarked), ("marked", setting)):
                text = lab.texts(dataset, one)[number]
                ppl = float(lab.perplexity(dataset, one, [number])[0])
                row |= {f"{name} text": text["text"], f"{name} PPL": ppl,
                        f"{name} z": float(lab.z([text], detector)[0])}  # fmt: skip
            report.add(row)
    return report


def frontier(lab: Lab) -> Report:
    """Detection against perplexity for every strategy, by δ, temperature and pace."""
    groups = [(temperature, per_step) for temperature in (0.0, 0.8) for per_step in (1, 4)]
    settings = {
        (group, name): [Setting(name, 0.5, delta, *group, order=ORDER) for delta in SWEEP]
        for group in groups
        for name in STRATEGIES
    }
    report = start_report(
        lab, "The frontier", chain(*settings.values()), ("median PPL", ""), judged=True
    )
    for dataset in lab.datasets:
        swept = {
            group: [_frontier_row(lab, dataset, setting) for setting in inside]
            for group, inside in settings.items()
        }
        report.rows += chain(*swept.values())
        for y in ("TPR at 1 % FPR", "mean z"):
            for ((temperature, per_step), strategy), rows in swept.items():
                panel = f"{dataset.name}, temperature {temperature:g}, {per_step} a step"
                points = [(row["median PPL"], row[y]) for row in rows]
                report.curves.append(Curve(panel, strategy, points, y))
    return report


def _frontier_row(lab: Lab, dataset: Dataset, setting: Setting) -> Row:
    kept = lab.kept(dataset, setting)
    row: Row = {"prompts": dataset.name, "temperature": setting.temperature,
                "tokens a step": setting.per_step, "strategy": setting.strategy,
                "δ": setting.delta}  # fmt: skip
    row |= _detected(lab, dataset, setting, kept, "unique")
    row["median PPL"] = _median(lab.perplexity(dataset, setting, kept.numbers))
    row["clean PPL"] = _median(lab.perplexity(dataset, setting.unmarked, kept.numbers))
    return row


def lengths(lab: Lab) -> Report:
    """How often texts are detected by their length, for every strategy.

    Those that bias tokens do so by the protocol's δ; what is `joint`, whose δ is no bias, has its
    own. The exact p-value decides, as in `dllmark detect`: no threshold is taken from the unmarked
    texts, whose own rate is reported too. A text counts with its first tokens at every length it
    reaches.
    They are written at temperature 0.8: at 0 a small model soon repeats itself, and what repeats is
    no evidence.
    """
    settings = [
        Setting(name, delta=strategy.default_delta if strategy.joint else lab.protocol.delta,
                temperature=0.8, order=ORDER)
        for name, strategy in STRATEGIES.items()
    ]  # fmt: skip
    title, axes = "Lengths: detection against length", ("tokens", "TPR")
    report = start_report(lab, title, settings, axes, any_length=True)
    for unused in ("scored", "most_repeats"):
        del report.about[unused]
    report.about["temperature"] = settings[0].temperature
    detector = lab.detector(0.5)
    for dataset in lab.datasets:
        plain = _by_length(lab.texts(dataset, settings[0].unmarked), detector)
        for setting in settings:
            marked = _by_length(lab.texts(dataset, setting), detector)
            for length, p in marked.items():
                row: Row = {"prompts": dataset.name, "strategy": setting.strategy,
                            "δ": setting.delta, "tokens": length, "texts": len(p)}  # fmt: skip
                null = plain.get(length, np.zeros(0))
                for rate in LENGTH_RATES:
                    row |= rate_cells(f"TPR {_at(rate)}", int((p <= rate).sum()), len(p))
                row["unmarked texts"] = len(null)
                for rate in LENGTH_RATES if len(null) else ():
                    name = f"unmarked {_at(rate)}"
                    row |= rate_cells(name, int((null <= rate).sum()), len(null))
                report.add(row)
            for rate in LENGTH_RATES:
                points = [(float(length), 100 * float((p <= rate).mean()))
                          for length, p in marked.items()]  # fmt: skip
                report.curves.append(
                    Curve(f"{dataset.name}, {_at(rate)}", str(setting.strategy), points)
                )
    return report


def _by_length(texts: list[TextRecord], detector: Detector) -> dict[int, Floats]:
    return p_by_length([text["ids"] for text in texts], detector, LENGTHS)


def _at(rate: float) -> str:
    return f"at p ≤ {100 * rate:g} %"


def start_report(
    lab: Lab,
    title: str,
    settings: Iterable[Setting],
    axes: tuple[str, str] = ("", ""),
    *,
    judged: bool = False,
    any_length: bool = False,
) -> Report:
    """Have all texts of an experiment written, and return the report to fill.

    It says what a reader must know to compare: the model, the protocol, the judge, and how the
    texts were written.
    """
    settings = list(settings)
    lab.complete(settings, any_length=any_length)
    notes = lab.notes(settings)
    about: dict[str, Any] = {
        "model": ", ".join(dict.fromkeys(one.model for one in notes)) or lab.model
    }
    if judged:
        about["judge"] = lab.judge or "none"
    about |= vars(lab.protocol)
    del about["delta"]
    if len(strengths := {setting.delta for setting in settings}) == 1:
        about |= {"δ": strengths.pop()}
    return Report(title, about, axes, origin={"texts": summary(notes)})


def _grid() -> list[Setting]:
    return [Setting(paper.BEST, gamma, delta) for gamma in GAMMAS for delta in DELTAS]


def _detected(
    lab: Lab,
    dataset: Dataset,
    setting: Setting,
    kept: CountedPrompts,
    scoring: Scoring,
    texts: list[TextRecord] | None = None,
) -> Row:
    """Return a setting's TPR at each rate with its interval, and the mean z."""
    detector = lab.detector(setting.gamma, scoring)
    null = lab.z(_pick(lab.texts(dataset, setting.unmarked), kept.numbers), detector)
    if texts is None:
        z = lab.z(_pick(lab.texts(dataset, setting), kept.numbers), detector)
    else:
        z = lab.z(texts, detector, max(len(text["ids"]) for text in texts))
    row: Row = kept.cells | {"texts": len(z), "mean z": float(z.mean())}
    for rate in RATES:
        hits = int((z > threshold(null, rate).value).sum())
        row |= rate_cells(f"TPR at {100 * rate:g} % FPR", hits, len(z))
    return row


def _attacked(
    lab: Lab,
    dataset: Dataset,
    setting: Setting,
    kept: CountedPrompts,
    attack: str,
    ratio: float,
    paraphrasers: dict[str, Paraphraser | None],
) -> list[TextRecord]:
    """Return the ids of a setting's texts after an attack, which is the same in every run.

    There are none where the paraphraser is absent, or gave all of them up.
    """
    texts, tokenizer = lab.texts(dataset, setting), lab.tokenizer
    if attack in paraphrasers:
        paraphraser = paraphrasers[attack]
        if paraphraser is None:
            return []
        place = lab.folder / attack / dataset.name / f"{setting.slug}.jsonl"
        rewritten = rewrite(texts, kept.numbers, place, paraphraser.attack, paraphraser.answers_to)
        scored_parts = [scored_text(rewritten[one]) for one in kept.numbers if one in rewritten]
        return [{"ids": ids} for ids in tokenizer.encode_many(scored_parts)]
    vocabulary, scored = ordinary(tokenizer), lab.protocol.scored
    edited = []
    for number in kept.numbers:
        rng = np.random.default_rng([number, round(100 * ratio)])
        ids = texts[number]["ids"][:scored].astype(np.int64)
        edited.append({"ids": TOKEN_ATTACKS[attack](ids, ratio, rng, vocabulary)})
    return edited


def rewrite(
    texts: list[TextRecord],
    numbers: list[int],
    path: Path,
    attack: dict[str, Any],
    answers: Callable[[list[Text]], Answers],
) -> dict[int, str]:
    """Have texts rewritten that a file lacks; return by number all that it has then.

    `answers` is given all texts of these numbers, and then asked for the missing ones. The file may
    hold more, of a run in which more prompts counted, and fewer where some were given up.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    known = [Text(number, text["text"], {}, "text") for number, text in enumerate(texts, 1)]
    wanted = {number + 1 for number in numbers}
    counted = [text for text in known if text.line in wanted]
    others = [text for text in known if text.line not in wanted]
    complete(counted, path, attack, answers(counted), others)
    lines = map(json.loads, whole_lines(path)[0])
    return {line["attack"]["line"] - 1: line["text"] for line in lines}


def _pick(texts: list[TextRecord], kept: list[int]) -> list[TextRecord]:
    return [texts[number] for number in kept]


def _median(values: Floats) -> float:
    return float(np.median(values))
