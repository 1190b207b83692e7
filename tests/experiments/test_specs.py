"""Every table and figure runs on a small model; its numbers are those of a naive computation."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dllmark.attacks.endpoint import GivenUp
from dllmark.detection.detector import Detector
from dllmark.experiments import paper, specs
from dllmark.experiments.batches import LocalWriter
from dllmark.experiments.lab import CountedPrompts, Lab
from dllmark.experiments.p_values import p_by_length
from dllmark.experiments.settings import Dataset, Protocol, Setting
from dllmark.marking.strategies import BIASES, STRATEGIES

PROTOCOL = Protocol(samples=8, tokens=24, scored=20, block=8, most_repeats=1.0)


def lab_with(model, datasets, folder, **options):
    """A lab whose writer is this model."""
    writer = LocalWriter(lambda: model)
    return Lab(model.name, model.tokenizer, datasets, folder, PROTOCOL, writer, **options)


@pytest.fixture(scope="module")
def lab(endless, tmp_path_factory):
    prompts = [f"w{number} w{number + 1}" for number in range(8)]
    truths = ["w3 w4"] * 8
    datasets = [Dataset("C4", prompts, truths, False), Dataset("ELI5", prompts, truths, True)]
    return lab_with(endless, datasets, tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def table(lab):
    return specs.table1(lab)


def test_table_1_has_every_strategy_under_both_scorings_beside_the_paper(table):
    rows = [(row["prompts"], row["scoring"], row["strategy"]) for row in table.rows]
    strategies = tuple(BIASES)
    assert rows == [
        (d, s, m) for d in ("C4", "ELI5") for s in ("unique", "all") for m in strategies
    ]
    best = next(row for row in table.rows if row["strategy"] == "predictive-bidirectional")
    assert best["1 % FPR, LLaDA-Instruct-8B"] == 92.0


def test_another_strength_is_written_and_has_nothing_of_the_papers_beside(endless, tmp_path):
    dataset = Dataset("C4", ["w1", "w2"], ["w3", "w4"], False)
    lab = lab_with(endless, [dataset], tmp_path)
    lab.protocol = replace(PROTOCOL, delta=9.0)
    report = specs.table1(lab)
    assert report.about["δ"] == 9.0
    assert not any("LLaDA" in name for row in report.rows for name in row)
    assert not any("the paper" in name for row in specs.table2(lab, {}).rows for name in row)
    written = {path.stem for path in (tmp_path / "texts" / "C4").iterdir()}
    assert written == {"unmarked-t0-p1"} | {f"{name}-g0.5-d9-t0-p1" for name in BIASES}


@pytest.mark.parametrize("scoring", ["unique", "all"])
def test_a_rate_is_the_share_above_the_largest_unmarked_scores(lab, table, scoring):
    dataset = lab.datasets[0]
    detector = Detector(lab.key(0.5), lab.tokenizer, scoring=scoring)

    def scores(setting):
        return [detector.detect(text["ids"][:20]).z for text in lab.texts(dataset, setting)]

    plain, marked = scores(Setting(None)), scores(Setting("kgw"))
    [row] = [
        row for row in table.rows
        if (row["prompts"], row["scoring"], row["strategy"]) == ("C4", scoring, "kgw")
    ]  # fmt: skip
    assert row["TPR at 1 % FPR"] == 100 * np.mean([z > max(plain) for z in marked])
    assert row["mean z"] == pytest.approx(np.mean(marked))
    assert row["TPR at 1 % FPR, low"] <= row["TPR at 1 % FPR"] <= row["TPR at 1 % FPR, high"]
    assert (row["texts"], row["left out, short"], row["left out, repetitive"]) == (8, 0, 0)


def test_a_report_says_by_what_the_texts_were_written(table):
    assert table.about["model"] == "tiny"
    written = 2 * 8 * (1 + len(BIASES))  # prompts of both kinds, unmarked and marked
    assert table.origin["texts"].startswith(f"{written} texts in 0:00:")
    assert " on CPU " in table.origin["texts"]
    assert f"torch {torch.__version__}, dllmark " in table.origin["texts"]


def test_table_2_says_which_paraphrasers_were_not_run(lab):
    report = specs.table2(lab, {"paraphrase": None, "dipper": None})
    rows = {(row["prompts"], row["attack"], row["ratio"], row["strategy"]) for row in report.rows}
    assert len(rows) == len(report.rows) == 2 * len(paper.TABLE_2)
    not_run = {row["attack"] for row in report.rows if row["texts"] == "not run"}
    assert not_run == {"paraphrase", "dipper"}


def test_table_2_scores_paraphrases_and_asks_for_each_once(lab):
    paraphrased = []

    def answers(records):
        for number, record in enumerate(records):
            paraphrased.append(record.text)
            yield number, GivenUp("tired") if number == 0 else "w1 w2 w3 w4 w5 w6"

    paraphrasers = {"paraphrase": specs.Paraphraser({"name": "test"}, answers), "dipper": None}
    first = specs.table2(lab, paraphrasers)
    count = len(paraphrased)
    assert count == 2 * 4 * 8
    [row] = [
        row for row in first.rows
        if (row["prompts"], row["attack"], row["strategy"]) == ("C4", "paraphrase", "kgw")
    ]  # fmt: skip
    expected = Detector(lab.key(0.5), lab.tokenizer).detect("w1 w2 w3 w4 w5 w6").z
    assert row["mean z"] == pytest.approx(expected)
    assert row["texts"] == 7
    specs.table2(lab, paraphrasers)
    assert len(paraphrased) == count + 2 * 4  # only the ones given up


def test_table_2_keeps_the_paraphrases_of_prompts_that_count_no_more(lab, monkeypatch):
    paraphrased = []

    def answers(records):
        for number, record in enumerate(records):
            paraphrased.append(record.text)
            yield number, f"w{record.line} w2 w3 w4 w5 w6"

    paraphrasers = {"paraphrase": specs.Paraphraser({"name": "test"}, answers)}
    specs.table2(lab, paraphrasers)
    count = len(paraphrased)
    monkeypatch.setattr(type(lab), "kept", lambda *_: CountedPrompts([1, 4, 5], short=5, looping=0))
    fewer = specs.table2(lab, paraphrasers)
    assert {row["texts"] for row in fewer.rows if row["attack"] == "paraphrase"} == {3}
    assert len(paraphrased) == count


def test_table_3_and_the_figures_cover_the_papers_grid(lab):
    table = specs.table3(lab)
    assert "δ" not in table.about
    assert {(row["prompts"], row["γ"], row["δ"]) for row in table.rows} == set(paper.TABLE_3)
    assert all(np.isnan(row["median PPL"]) for row in table.rows)  # there is no judge
    curves = specs.figure2(lab).curves
    assert len(curves) == 2 * 3 * 4
    assert [x for x, _ in curves[0].points] == [10.0, 20.0]
    points = specs.figure3(lab).rows
    assert len(points) == 2 * 3 * 5
    assert [row["δ"] for row in points[:5]] == [0.0, 1.0, 2.0, 5.0, 10.0]


def test_a_stronger_mark_scores_higher_in_figure_2(lab):
    rows = specs.figure2(lab).rows
    z = {row["δ"]: row["mean z"] for row in rows
         if (row["prompts"], row["γ"], row["tokens"]) == ("C4", 0.5, 20)}  # fmt: skip
    assert z[10.0] > z[1.0]


def test_examples_show_what_people_and_the_model_wrote(lab):
    rows = specs.examples(lab).rows
    assert [row["prompts"] for row in rows] == ["C4", "C4", "ELI5", "ELI5"]
    assert rows[0]["people wrote"] == "w3 w4"
    dataset = lab.datasets[0]
    assert rows[0]["clean text"] == lab.texts(dataset, Setting(None))[0]["text"]
    assert rows[0]["marked text"] != rows[0]["clean text"]


def test_the_frontier_sweeps_strategies_temperatures_and_tokens_a_step(
    endless, tmp_path, monkeypatch
):
    monkeypatch.setattr(specs, "SWEEP", (1.0, 4.0))
    dataset = Dataset("C4", ["w1", "w2"], ["w3", "w4"], False)
    lab = lab_with(endless, [dataset], tmp_path)
    lab.protocol = replace(PROTOCOL, tokens=12, scored=10)
    report = specs.frontier(lab)
    swept = 4 * len(STRATEGIES)
    assert len(report.rows) == swept * 2
    assert len(report.curves) == swept * 2
    assert {row["temperature"] for row in report.rows if row["strategy"] == "joint"} == {0, 0.8}
    assert {curve.y for curve in report.curves} == {"TPR at 1 % FPR", "mean z"}
    assert {row["tokens a step"] for row in report.rows} == {1, 4}


def test_lengths_are_decided_by_the_exact_p_value(lab, monkeypatch):
    monkeypatch.setattr(specs, "LENGTHS", (10, 20, 400))
    report = specs.lengths(lab)
    rows = [(row["prompts"], row["strategy"], row["tokens"]) for row in report.rows]
    assert rows == [(d, s, n) for d in ("C4", "ELI5") for s in STRATEGIES for n in (10, 20)]
    row = report.rows[rows.index(("ELI5", "kgw", 20))]
    detector, dataset = Detector(lab.key(0.5), lab.tokenizer), lab.datasets[1]

    def share(setting, rate):
        texts = lab.texts(dataset, setting)
        return 100 * np.mean([detector.detect(t["ids"][:20]).p_value <= rate for t in texts])

    marked = Setting("kgw", temperature=0.8, order="low_confidence")
    assert row["TPR at p ≤ 1 %"] == share(marked, 0.01)
    assert row["TPR at p ≤ 0.01 %"] == share(marked, 0.0001)
    assert row["unmarked at p ≤ 1 %"] == share(marked.unmarked, 0.01)
    assert row["texts"] == row["unmarked texts"] == 8
    assert report.about["temperature"] == 0.8
    deltas = {row["strategy"]: row["δ"] for row in report.rows}
    own = {"joint": 3.6, "adaptive-joint": 5.4, "cooled-joint": 10.8}
    assert deltas == {name: own.get(name, 2.0) for name in STRATEGIES}
    assert "scored" not in report.about
    assert {curve.panel for curve in report.curves} == {
        f"{name}, at p ≤ {rate} %" for name in ("C4", "ELI5") for rate in ("1", "0.01")
    }


def test_a_text_counts_at_the_lengths_it_reaches(lab):
    detector = lab.detector(0.5)
    p_values = p_by_length([[5, 6, 7], [5, 6, 7, 8, 9]], detector, (2, 4, 8))
    assert {length: len(p) for length, p in p_values.items()} == {2: 2, 4: 1}
    assert p_values[4][0] == detector.detect([5, 6, 7, 8]).p_value


def test_perplexity_is_the_judges_and_is_kept(lab, endless, monkeypatch):
    calls, loaded = [], []

    def counted(judge, pairs):
        calls.append(len(pairs))
        return [float(len(text)) for _, text in pairs]

    monkeypatch.setattr("dllmark.experiments.lab.perplexities", counted)
    monkeypatch.setattr("dllmark.experiments.lab.load_judge", lambda name: loaded.append(name) or 1)
    judged = lab_with(endless, lab.datasets, lab.folder, judge="a/judge")
    dataset, setting = lab.datasets[0], Setting("kgw")
    expected = [len(text["text"]) for text in lab.texts(dataset, setting)]
    assert judged.perplexity(dataset, setting, [0, 1]).tolist() == expected[:2]
    assert judged.perplexity(dataset, setting, [1, 2]).tolist() == expected[1:3]
    assert calls == [2, 1]
    assert loaded == ["a/judge"]
    [path] = lab.folder.glob("perplexity/a--judge/C4/*.json")
    assert json.loads(path.read_text()).keys() == {"0", "1", "2"}
    again = lab_with(endless, lab.datasets, lab.folder, judge="a/judge")
    assert again.perplexity(dataset, setting, [0, 2]).tolist() == expected[:3:2]
    assert loaded == ["a/judge"]  # what is known needs no judge
