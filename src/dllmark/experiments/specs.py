"""The tables and figures: which settings each compares, and what it reports of them.

A spec takes a `Lab` and returns a `Report`; what the lab has written for one it has for the others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dllmark.attacks.records import Answers, complete
from dllmark.attacks.records import Record as Text
from dllmark.attacks.tokens import TOKEN_ATTACKS, ordinary
from dllmark.experiments import paper
from dllmark.experiments.lab import Floats, Lab, Record
from dllmark.experiments.report import Curve, Report, Row
from dllmark.experiments.settings import METHODS, RATES, Dataset, Setting
from dllmark.stats import share_interval, threshold
from dllmark.watermark import STRATEGIES

SCORINGS = ("unique", "all")
GAMMAS = (0.25, 0.5, 0.75)
DELTAS = (1.0, 2.0, 5.0, 10.0)
ATTACK_RATIOS = (0.1, 0.2)
SWEEP = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
PBI = "predictive-bidirectional"


@dataclass(frozen=True)
class Paraphraser:
    """Another model that rewrites texts, and what is noted of it beside each."""

    attack: dict[str, Any]
    answers: Answers


def table1(lab: Lab) -> Report:
    """Detection of each strategy (the paper's Table 1)."""
    report = Report("Table 1: detection of the strategies", _about(lab))
    settings = [Setting(name) for name in (*METHODS, "expected-bidirectional")]
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
                theirs = paper.TABLE_1.get((dataset.name, str(setting.strategy)))
                report.add(row, theirs, paper.TABLE_1_MODEL)
    return report


def table2(lab: Lab, paraphrasers: dict[str, Paraphraser | None]) -> Report:
    """Detection after attacks (Table 2); a paraphraser of None was not run."""
    report = Report("Table 2: robustness against attacks", _about(lab))
    settings = [Setting(name) for name in METHODS]
    plans: list[tuple[str, float]] = [(a, r) for a in TOKEN_ATTACKS for r in ATTACK_RATIOS]
    for dataset in lab.datasets:
        kept = lab.kept(dataset, *settings)
        for attack, ratio in [*plans, *((name, 0.0) for name in paraphrasers)]:
            for setting in settings:
                row: Row = {"prompts": dataset.name, "attack": attack, "ratio": ratio or None,
                            "strategy": setting.strategy}  # fmt: skip
                if attack in paraphrasers and paraphrasers[attack] is None:
                    row |= {"texts": "not run"}
                else:
                    edited = _attacked(lab, dataset, setting, kept, attack, ratio, paraphrasers)
                    row |= _detected(lab, dataset, setting, kept, "unique", edited)
                theirs = paper.TABLE_2[attack, ratio, str(setting.strategy)]
                report.add(row, theirs, "the paper")
    return report


def table3(lab: Lab) -> Report:
    """Detection and perplexity by γ and δ (Table 3)."""
    report = Report("Table 3: γ and δ", _about(lab))
    for dataset in lab.datasets:
        for setting in _grid():
            kept = lab.kept(dataset, setting)
            row: Row = {"prompts": dataset.name, "γ": setting.gamma, "δ": setting.delta}
            row |= _detected(lab, dataset, setting, kept, "unique")
            row["median PPL"] = _median(lab.perplexity(dataset, setting, kept))
            theirs, their_ppl = paper.TABLE_3[dataset.name, setting.gamma, setting.delta]
            report.add(row | {"PPL, the paper": their_ppl}, theirs, "LLaDA-8B-Instruct")
    return report


def figure2(lab: Lab) -> Report:
    """How z grows with the length, by γ and δ (Figure 2)."""
    report = Report("Figure 2: z against length", _about(lab), axes=("tokens", "mean z"))
    lengths = range(10, lab.protocol.scored + 1, 10)
    for dataset in lab.datasets:
        for setting in _grid():
            kept = lab.kept(dataset, setting)
            texts = _pick(lab.texts(dataset, setting), kept)
            detector = lab.detector(setting.gamma)
            means = [float(lab.z(texts, detector, length).mean()) for length in lengths]
            report.curves.append(
                Curve(f"{dataset.name}, γ {setting.gamma:g}", f"δ {setting.delta:g}",
                      list(zip(map(float, lengths), means, strict=True)))
            )  # fmt: skip
            for length, mean in zip(lengths, means, strict=True):
                report.add({"prompts": dataset.name, "γ": setting.gamma, "δ": setting.delta,
                            "tokens": length, "mean z": mean})  # fmt: skip
    return report


def figure3(lab: Lab) -> Report:
    """How z and perplexity go together, by γ and δ (Figure 3)."""
    report = Report("Figure 3: z against perplexity", _about(lab), axes=("median PPL", "mean z"))
    for dataset in lab.datasets:
        for gamma in GAMMAS:
            marked = [setting for setting in _grid() if setting.gamma == gamma]
            points = []
            for setting in [marked[0].unmarked, *marked]:
                kept = lab.kept(dataset, setting)
                texts = _pick(lab.texts(dataset, setting), kept)
                z = float(lab.z(texts, lab.detector(gamma)).mean())
                ppl = _median(lab.perplexity(dataset, setting, kept))
                points.append((ppl, z))
                delta = setting.delta if setting.strategy else 0.0
                report.add({"prompts": dataset.name, "γ": gamma, "δ": delta,
                            "mean z": z, "median PPL": ppl})  # fmt: skip
            report.curves.append(Curve(dataset.name, f"γ {gamma:g}", points))
    return report


def examples(lab: Lab) -> Report:
    """Two texts of each kind, clean and marked, beside what people wrote (the appendix's table)."""
    report = Report("Examples", _about(lab))
    setting, detector = Setting(PBI), lab.detector(0.5)
    for dataset in lab.datasets:
        kept = lab.kept(dataset, setting)[:2]
        for number in kept:
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
    """Detection against perplexity for every strategy, over δ, temperature and tokens a step."""
    report = Report("The frontier", _about(lab), axes=("median PPL", "TPR at 1 % FPR"))
    for dataset in lab.datasets:
        for temperature in (0.0, 0.8):
            for per_step in (1, 4):
                panel = f"{dataset.name}, temperature {temperature:g}, {per_step} a step"
                for strategy in STRATEGIES:
                    points = []
                    for delta in SWEEP:
                        setting = Setting(strategy, 0.5, delta, temperature, per_step)
                        row = _frontier_row(lab, dataset, setting)
                        points.append((row["median PPL"], row["TPR at 1 % FPR"]))
                        report.add(row)
                    report.curves.append(Curve(panel, strategy, points))
    return report


def _frontier_row(lab: Lab, dataset: Dataset, setting: Setting) -> Row:
    kept = lab.kept(dataset, setting)
    row: Row = {"prompts": dataset.name, "temperature": setting.temperature,
                "tokens a step": setting.per_step, "strategy": setting.strategy,
                "δ": setting.delta}  # fmt: skip
    row |= _detected(lab, dataset, setting, kept, "unique")
    row["median PPL"] = _median(lab.perplexity(dataset, setting, kept))
    row["clean PPL"] = _median(lab.perplexity(dataset, setting.unmarked, kept))
    return row


def _grid() -> list[Setting]:
    return [Setting(PBI, gamma, delta) for gamma in GAMMAS for delta in DELTAS]


def _detected(
    lab: Lab,
    dataset: Dataset,
    setting: Setting,
    kept: list[int],
    scoring: str,
    texts: list[Record] | None = None,
) -> Row:
    """Return a setting's TPR at each rate with its interval, and the mean z."""
    detector = lab.detector(setting.gamma, scoring)
    null = lab.z(_pick(lab.texts(dataset, setting.unmarked), kept), detector)
    if texts is None:
        z = lab.z(_pick(lab.texts(dataset, setting), kept), detector)
    else:
        z = lab.z(texts, detector, max(len(text["ids"]) for text in texts))
    row: Row = {"texts": len(kept), "left out": len(dataset.prompts) - len(kept),
                "mean z": float(z.mean())}  # fmt: skip
    for rate in RATES:
        found = share_interval(int((z > threshold(null, rate).value).sum()), len(z))
        name = f"TPR at {100 * rate:g} % FPR"
        row |= {name: 100 * found.share, f"{name}, low": 100 * found.low,
                f"{name}, high": 100 * found.high}  # fmt: skip
    return row


def _attacked(
    lab: Lab,
    dataset: Dataset,
    setting: Setting,
    kept: list[int],
    attack: str,
    ratio: float,
    paraphrasers: dict[str, Paraphraser | None],
) -> list[Record]:
    """Return the ids of a setting's texts after an attack, which is the same in every run."""
    texts, tokenizer = _pick(lab.texts(dataset, setting), kept), lab.model.tokenizer
    paraphraser = paraphrasers.get(attack)
    if paraphraser is not None:
        place = lab.folder / attack / dataset.name / f"{setting.slug}.jsonl"
        rewritten = _paraphrased(paraphraser, texts, place)
        return [{"ids": ids.tolist()} for ids in tokenizer.encode_many(rewritten)]
    vocabulary, scored = ordinary(tokenizer), lab.protocol.scored
    edited = []
    for number, text in zip(kept, texts, strict=True):
        rng = np.random.default_rng([number, round(100 * ratio)])
        ids = TOKEN_ATTACKS[attack](np.array(text["ids"][:scored]), ratio, rng, vocabulary)
        edited.append({"ids": ids.tolist()})
    return edited


def _paraphrased(paraphraser: Paraphraser, texts: list[Record], path: Path) -> list[str]:
    """Return the paraphrases of texts; they are kept in a file, and only missing ones are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = [Text(number, text["text"], {}, "text") for number, text in enumerate(texts, 1)]
    complete(asked, path, paraphraser.attack, paraphraser.answers)
    return [json.loads(line)["text"] for line in path.read_bytes().splitlines()]


def _pick(texts: list[Record], kept: list[int]) -> list[Record]:
    return [texts[number] for number in kept]


def _median(values: Floats) -> float:
    return float(np.median(values))


def _about(lab: Lab) -> dict[str, Any]:
    """Return what a reader must know to compare: the model, the protocol and the judge."""
    return {
        "model": lab.model.name,
        "judge": lab.judge.name if lab.judge else "none",
        **vars(lab.protocol),
    }
