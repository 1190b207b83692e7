"""All schemes are compared in one run, and the numbers are those of a naive computation."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dllmark.errors import InputError
from dllmark.experiments.batches import LocalWriter
from dllmark.experiments.lab import Lab
from dllmark.experiments.rivals import compare
from dllmark.experiments.rivals.compare import rivals, ways
from dllmark.experiments.rivals.measures import change_cells, interval, rate_cells
from dllmark.experiments.rivals.schemes import SCHEMES, find_scheme
from dllmark.experiments.settings import Dataset, Protocol, Setting

PROTOCOL = Protocol(samples=4, tokens=16, scored=12, block=8)
KEYS = 2


def perplexities(judge, pairs):
    """A judge who likes texts that share a word with the prompt."""
    found = []
    for prompt, text in pairs:
        shared = len(set(prompt.split()) & set(text.split()))
        found.append(len(judge) + 10 / (1 + shared) + len(set(text.split())))
    return found


@pytest.fixture(scope="module")
def lab(endless, tmp_path_factory):
    prompts = [f"w{number} w{number + 1}" for number in range(4, 20, 4)]
    datasets = [
        Dataset("C4", prompts, ["w3"] * 4, False),
        Dataset("ELI5", prompts, ["w3"] * 4, True),
    ]
    return Lab(
        endless.name, endless.tokenizer, datasets, tmp_path_factory.mktemp("rivals"), PROTOCOL,
        LocalWriter(lambda: endless), "judge", 4, second_judge="other judge",
    )  # fmt: skip


@pytest.fixture(scope="module")
def reports(lab):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dllmark.experiments.lab.perplexities", perplexities)
        patch.setattr("dllmark.experiments.lab.load_judge", lambda name: name)
        patch.setattr(compare, "LENGTHS", (8, 16, 24))
        return dict(rivals(lab, KEYS, "low_confidence", quick=True))


def row_of(report, scheme, prompts="C4", **more):
    wanted = {"scheme": scheme, "prompts": prompts, **more}
    [row] = [row for row in report.rows if wanted.items() <= row.items()]
    return row


def written(lab, scheme, prompts="C4"):
    """The texts of a scheme, key by key, and their unmarked partners."""
    [dataset] = [dataset for dataset in lab.datasets if dataset.name == prompts]
    settings = [
        Setting(scheme.name, scheme.gamma, scheme.delta, 0.8, 1, scheme.order or "low_confidence",
                key)
        for key in range(KEYS)
    ]  # fmt: skip
    return (
        [lab.texts(dataset, setting) for setting in settings],
        [lab.texts(dataset, setting.unmarked) for setting in settings],
    )


def loops(ids):
    grams = [tuple(ids[at : at + 4]) for at in range(len(ids) - 3)]
    return 1 - len(set(grams)) / len(grams) > 0.2


def test_every_scheme_is_in_the_table_of_every_kind_of_prompt(reports):
    assert list(reports) == ["rivals-t0.8-p1-low_confidence", "rivals-lengths"]
    table = reports["rivals-t0.8-p1-low_confidence"]
    for prompts in ("C4", "ELI5"):
        names = [row["scheme"] for row in table.rows if row["prompts"] == prompts]
        marked = [scheme.name for scheme in SCHEMES.values() for _ in scheme.scores]
        assert names == ["unmarked", "unmarked, left to right", *marked]
    columns = list(table.rows[0])
    assert columns.index("TPR at 0.1 %") < columns.index("mean z") < columns.index("tokens")
    assert (table.about["keys"], table.about["judges"]) == (KEYS, "judge, other judge")


@pytest.mark.parametrize("name", ["expected-bidirectional", "unigram", "dgmark", "gumbel"])
def test_a_row_holds_what_a_naive_computation_finds(lab, reports, name):
    scheme = SCHEMES[name]
    texts, plain = written(lab, scheme)
    score, make = next(iter(scheme.scores.items()))
    row = row_of(reports["rivals-t0.8-p1-low_confidence"], name, score=score)
    hits, accused, z, ratios, matched, clean = [], [], [], [], [], []
    for key, (of_key, partners) in enumerate(zip(texts, plain, strict=True)):
        scorer = make(lab.key(scheme.gamma, key), lab.tokenizer)
        for text, partner in zip(of_key, partners, strict=True):
            [found] = scorer([text["ids"][:12].astype(np.int64)])
            [null] = scorer([partner["ids"][:12].astype(np.int64)])
            hits.append(found.p_value <= 0.01)
            accused.append(null.p_value <= 0.01)
            z.append(found.z)
            own, other = (perplexities("judge", [(one["prompt"], one["text"])])[0]
                          for one in (text, partner))  # fmt: skip
            ratios.append(own / other)
            if not loops(partner["ids"].tolist()):
                looping = loops(text["ids"].tolist())
                matched.append(found.p_value <= 0.001 and not looping)
                clean += [] if looping else [own / other]
    assert row["TPR at 1 %"] == pytest.approx(100 * np.mean(hits))
    assert row["unmarked at 1 %"] == pytest.approx(100 * np.mean(accused))
    assert row["mean z"] == pytest.approx(np.mean(z))
    change = 100 * (math.prod(ratios) ** (1 / len(ratios)) - 1)
    assert row["PPL change % by judge 1"] == pytest.approx(change)
    assert row["texts"] == len(hits) == 8
    assert row["TPR at 0.1 %, loops missed"] == pytest.approx(100 * np.mean(matched))
    change = 100 * (math.prod(clean) ** (1 / len(clean)) - 1)
    assert row["PPL change %, no loops"] == pytest.approx(change)
    everything = [
        [pair for text in of_key for pair in pairwise(text["ids"].tolist())] for of_key in texts
    ]
    distinct = np.mean([len(set(pairs)) / len(pairs) for pairs in everything])
    assert row["distinct-2"] == pytest.approx(distinct, abs=1e-4)
    assert row["degenerate %"] == 100 * np.mean(
        [loops(text["ids"].tolist()) for of_key in texts for text in of_key]
    )


def test_an_answer_is_on_topic_where_its_own_question_makes_it_likelier(lab, reports):
    texts, _ = written(lab, SCHEMES["unigram"], "ELI5")
    questions = lab.datasets[1].prompts
    likelier = []
    for of_key in texts:
        for number, text in enumerate(of_key):
            other = questions[(number + 1) % len(questions)]
            own, next_ = perplexities(
                "judge", [(questions[number], text["text"]), (other, text["text"])]
            )
            likelier.append(own < next_)
    row = row_of(reports["rivals-t0.8-p1-low_confidence"], "unigram", "ELI5")
    assert row["on topic % by judge 1"] == 100 * np.mean(likelier)
    assert "on topic % by judge 1" not in row_of(
        reports["rivals-t0.8-p1-low_confidence"], "unigram", "C4"
    )


def test_partners_are_written_by_the_same_sampler(lab, reports):
    _, plain = written(lab, SCHEMES["kgw-left-to-right"])
    assert all(text["known_left"] == 1.0 for texts in plain for text in texts)
    _, plain = written(lab, SCHEMES["unigram"])
    assert all(text["known_left"] < 1.0 for texts in plain for text in texts)


def test_every_key_has_partners_of_its_own_where_something_is_drawn(lab, reports):
    _, (first, second, *_) = written(lab, SCHEMES["unigram"])
    assert [text["text"] for text in first] != [text["text"] for text in second]
    row = row_of(reports["rivals-t0.8-p1-low_confidence"], "unmarked")
    assert row["texts"] == KEYS * len(first)
    cold = compare.Way(0.0, 1, "low_confidence").unmarked("", KEYS)
    assert [one.key for one in cold] == [0]


def test_every_key_marks_and_no_two_are_the_same(lab, reports):
    texts, _ = written(lab, SCHEMES["lr-dwm"])
    marks = [of_key[0]["watermark"]["key_id"] for of_key in texts]
    assert len(set(marks)) == KEYS
    assert texts[0][0]["text"] != texts[1][0]["text"]


def test_lengths_count_texts_that_reach_them(lab, reports):
    lengths = reports["rivals-lengths"].rows
    rows = [row for row in lengths if (row["scheme"], row["prompts"]) == ("unigram", "C4")]
    assert [(row["tokens"], row["texts"]) for row in rows] == [(8, 8), (16, 8)]
    texts, _ = written(lab, SCHEMES["unigram"])
    p_values = []
    for key, of_key in enumerate(texts):
        scorer = SCHEMES["unigram"].scores["green tokens"](lab.key(0.5, key), lab.tokenizer)
        p_values += [found.p_value for found in scorer([text["ids"][:8] for text in of_key])]
    assert rows[0]["TPR at 1 %"] == 100 * np.mean([p <= 0.01 for p in p_values])


def test_a_finished_comparison_writes_nothing_again(lab, reports, monkeypatch):
    class Nobody:
        hardware = dtype = "nothing"

        def write(self, batches):
            pytest.fail("something was to be written")

    monkeypatch.setattr(lab, "writer", Nobody())
    monkeypatch.setattr(lab, "_texts", {})
    again = dict(rivals(lab, KEYS, "low_confidence", quick=True))
    name = "rivals-t0.8-p1-low_confidence"
    assert again[name].record() == reports[name].record()


def test_some_schemes_may_be_compared_alone(lab, reports):
    names = ["unigram", "kgw", "unigram"]
    [(name, some), *_] = rivals(lab, KEYS, "low_confidence", quick=True, names=names)
    rows = [row for row in reports[name].rows if row["scheme"] in ("unmarked", *names)]
    assert sorted(some.rows, key=str) == sorted(rows, key=str)
    with pytest.raises(InputError, match="no scheme 'kgv': choose one of kgw"):
        next(rivals(lab, KEYS, "low_confidence", quick=True, names=["kgv"]))


def test_some_reports_may_be_made_alone(lab, reports):
    only = ["t0.8-p1-low_confidence"]
    names = [name for name, _ in rivals(lab, KEYS, "low_confidence", False, ["kgw"], only)]
    assert names == ["rivals-t0.8-p1-low_confidence"]
    with pytest.raises(InputError, match="no report 'nosuch': choose among t0"):
        list(rivals(lab, 1, "low_confidence", False, ["kgw"], ["lengths", "nosuch"]))
    with pytest.raises(InputError, match="no report 'strengths'"):
        list(rivals(lab, 1, "low_confidence", True, ["kgw"], ["strengths"]))


def test_any_setting_may_be_compared_over_chosen_strengths(lab):
    only = ["strengths-t0.8-p2-low_confidence"]
    unjudged = replace(lab, datasets=lab.datasets[:1], judge=None, second_judge=None)
    [(name, report)] = rivals(
        unjudged, 1, "low_confidence", False, ["kgw", "dgmark"], only, (0, 0.75)
    )
    assert name == "rivals-strengths-t0.8-p2-low_confidence"
    assert "2 a step" in report.title
    rows = [(row["scheme"], row["δ"]) for row in report.rows if row["score"] != "windows of 8"]
    assert rows == [("unmarked", None), ("kgw", 0.0), ("kgw", 1.5), ("dgmark", None)]
    assert only[0] not in compare.wanted_reports("low_confidence", False, [])


def test_a_scheme_of_one_order_is_compared_in_that_one():
    schemes = [find_scheme("joint"), find_scheme("unigram")]
    for order, names in (("low_confidence", ["joint", "unigram"]), ("entropy", ["unigram"])):
        entries = compare._entries(schemes, compare.Way(0.8, 1, order))
        assert [scheme.name for scheme, _ in entries] == names


def test_one_thing_is_varied_at_a_time():
    found = [way.slug for way in ways("low_confidence", quick=False)]
    assert found == [
        "t0.8-p1-low_confidence", "t0-p1-low_confidence", "t0.5-p1-low_confidence",
        "t1-p1-low_confidence", "t0.8-p2-low_confidence", "t0.8-p4-low_confidence",
        "t0.8-p1-random", "t0.8-p1-entropy",
    ]  # fmt: skip
    with pytest.raises(InputError, match="no order 'backwards' to compare in: choose one of low"):
        ways("backwards", quick=True)


def test_keyed_noise_is_left_out_at_temperature_0_and_strengths_vary_where_there_are_some():
    cold = compare._entries(list(SCHEMES.values()), compare.Way(0.0, 1, "random"))
    assert "gumbel" not in {scheme.name for scheme, _ in cold}
    varied = compare._entries(
        list(SCHEMES.values()), compare.Way(0.8, 1, "random"), compare.STRENGTHS
    )
    strengths = [strength for scheme, strength in varied if scheme.name == "unigram"]
    assert strengths == [0.5, 1.0, 1.5]
    assert [strength for scheme, strength in varied if scheme.name == "dgmark"] == [1.0]


def test_an_interval_is_wider_where_keys_differ_than_where_texts_do():
    rng = np.random.default_rng(0)
    mixed = (rng.random((8, 50)) < 0.5).astype(float)
    by_key = np.repeat([[1.0], [0.0]] * 4, 50, axis=1)

    def width(values):
        low, high = interval(values)
        return high - low

    assert width(by_key) > 3 * width(mixed)
    assert width(by_key.T) > 3 * width(mixed)


def test_an_interval_of_a_sure_thing_is_the_exact_one():
    row = rate_cells("TPR", np.ones((2, 10)))
    assert row["TPR, low"] == pytest.approx(100 * 0.025 ** (1 / 20))
    assert rate_cells("TPR", np.full((1, 2), np.nan)) == {}
    assert change_cells("PPL", np.full((1, 2), np.nan), np.ones((1, 2))) == {}


def test_texts_of_no_token_are_compared_too(endless, tmp_path, monkeypatch):
    def write_nothing(model, batch):
        mark = batch.key and batch.key.identity.to_dict()
        return [{"prompt": p, "text": "", "ids": [], "watermark": mark} for p in batch.prompts]

    monkeypatch.setattr("dllmark.experiments.batches.write_batch", write_nothing)
    monkeypatch.setattr("dllmark.experiments.lab.load_judge", lambda name: name)
    monkeypatch.setattr(
        "dllmark.experiments.lab.perplexities", lambda judge, pairs: [math.nan] * len(pairs)
    )
    dataset = Dataset("ELI5", ["w1", "w2"], ["w3"] * 2, True)
    lab = Lab(
        endless.name, endless.tokenizer, [dataset], tmp_path, PROTOCOL,
        LocalWriter(lambda: endless), "judge",
    )  # fmt: skip
    [(_, table)] = rivals(lab, 1, "entropy", quick=True)  # and no length is reached
    for row in table.rows[2:]:
        assert (row["TPR at 1 %"], row["scored"], row["degenerate %"]) == (0, 0, 0)
        assert row["PPL by judge 1"] is None
    table.write(tmp_path, "table")


def test_no_key_is_no_comparison(lab):
    with pytest.raises(InputError, match="at least 1 key is needed; got 0"):
        next(rivals(lab, 0, "entropy", quick=True))


def test_a_comparison_is_written_in_every_form(reports, tmp_path):
    name = "rivals-t0.8-p1-low_confidence"
    reports[name].write(tmp_path, name)
    forms = {path.name.removeprefix(name) for path in tmp_path.iterdir()}
    assert forms == {".md", ".csv", ".json", ".png"}
    rows = json.loads((tmp_path / f"{name}.json").read_text())["rows"]
    scores = sum(len(scheme.scores) for scheme in SCHEMES.values())
    assert len(rows) == 2 * (2 + scores)  # of two kinds of prompts, with two unmarked orders
