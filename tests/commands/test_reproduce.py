"""`dllmark reproduce` writes every form of a report, and says what it cannot do."""

import json
import sys

import pytest
from small_wordnet import write_wordnet

import dllmark.models.loading
import dllmark.relation.tokenizer
from dllmark.experiments.rivals.schemes import SCHEMES
from dllmark.files import only_writer_in

NAMES = ["table1", "table2", "table3", "figure2", "figure3", "examples", "lengths"]


@pytest.fixture
def folder(loaded_models, tmp_path, monkeypatch):
    """A folder with prompts, where every model is a small one."""
    monkeypatch.chdir(tmp_path)
    words = " ".join(f"w{number % 32}" for number in range(40))
    rows = [{"text": f"w{number} {words}"} for number in range(8)]
    (tmp_path / "c4.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return loaded_models


SMALL = ["--c4", "c4.jsonl", "--out", "out", "--samples", "8", "--tokens", "32", "--scored", "30",
         "--max-repeats", "1", "--model", "tiny"]  # fmt: skip


def test_every_experiment_runs_on_eight_samples_and_again_without_the_model(
    run, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("dllmark.experiments.specs.GAMMAS", (0.5,))
    monkeypatch.setattr("dllmark.experiments.specs.DELTAS", (2.0, 5.0))
    out = tmp_path / "out"
    first = run("reproduce", *NAMES, *SMALL, "--judge", "none")
    assert first.status == 0, first.err
    assert folder == ["tiny"]
    drawn = {"figure2", "figure3", "lengths"}
    for name in NAMES:
        forms = {path.suffix for path in out.glob(f"{name}.*")}
        assert forms == {".md", ".csv", ".json"} | ({".png"} if name in drawn else set())
        about = json.loads((out / f"{name}.json").read_text())["about"]
        assert (about["model"], about["samples"]) == ("tiny", 8)
        assert about["command"].startswith("`dllmark reproduce table1 table2 ")
        assert " texts in 0:00:" in about["texts"]
        assert " on CPU " in about["texts"]
    assert first.out.count("\n# ") == len(NAMES) - 1
    text = (out / "table1.md").read_text()

    second = run("reproduce", "table1", *SMALL)
    assert second.status == 0
    assert folder == ["tiny"]  # nothing was missing, so nothing was loaded
    again = (out / "table1.md").read_text()
    assert [line for line in again.splitlines() if "- command" not in line] == [
        line for line in text.splitlines() if "- command" not in line
    ]


def test_other_schemes_are_compared_in_one_command(run, folder, tmp_path, monkeypatch):
    some = {name: SCHEMES[name] for name in ("dgmark", "gumbel")}
    for name, value in (("SCHEMES", some), ("TEMPERATURES", (0.0,)), ("PER_STEP", ()),
                        ("ORDERS", ("random",))):  # fmt: skip
        monkeypatch.setattr(f"dllmark.experiments.rivals.compare.{name}", value)
    options = [*SMALL, "--keys", "2", "--judge", "none", "--device", "cpu", "--order", "random"]
    result = run("reproduce", "rivals", *options)
    assert result.status == 0, result.err
    assert folder == ["tiny"]
    reports = {path.stem for path in (tmp_path / "out").glob("rivals-*.md")}
    ways = {"rivals-t0.8-p1-random", "rivals-t0-p1-random"}
    assert reports == {*ways, "rivals-strengths"}  # no text reaches the first of the lengths
    cold = json.loads((tmp_path / "out" / "rivals-t0-p1-random.json").read_text())
    assert [row["scheme"] for row in cold["rows"]] == ["unmarked", "dgmark", "dgmark"]
    again = run("reproduce", "rivals", *options, "--quick", "--json")
    assert again.status == 0, again.err
    assert folder == ["tiny"]
    first = json.loads((tmp_path / "out" / "rivals-t0.8-p1-random.json").read_text())
    assert again.records[0]["rows"] == first["rows"]
    assert len(again.records) == 1
    assert len(list((tmp_path / "out" / "keys").iterdir())) == 2


def test_attacks_use_the_model_once_loaded_and_what_is_given(
    run, folder, tmp_path, monkeypatch, chat_server
):
    for name, value in {"ATTACKED": ("kgw",), "EDITED": (0.2,), "PASTED": (0.5,),
                        "REFILLED": (0.3,), "ROUNDS": 2}.items():  # fmt: skip
        monkeypatch.setattr(f"dllmark.experiments.robustness.{name}", value)
    write_wordnet(tmp_path / "wn")
    given = ["--endpoint", chat_server.url, "--endpoint-model", "m", "--wordnet", "wn"]
    given += ["--keys", "1", "--device", "cpu"]
    result = run("reproduce", "attacks", *SMALL, *given, "--json")
    assert result.status == 0, result.err
    assert folder == ["tiny"]
    rows = {(row["attack"], row["strength"]): row["texts"] for row in result.json["rows"]}
    assert rows["redenoise", 0.3] == rows["paraphrase", 2] == rows["synonyms", 0.5] == 8
    assert {path.suffix for path in (tmp_path / "out").glob("attacks.*")} == {
        ".md", ".csv", ".json", ".png",
    }  # fmt: skip
    monkeypatch.setattr(dllmark.models.loading, "load_model", None)
    assert run("reproduce", "attacks", *SMALL, *given).status == 0  # nothing was missing
    missing = run("reproduce", "attacks", *SMALL, "--wordnet", "nowhere")
    assert missing.status == 2
    assert "cannot read nowhere/cntlist.rev" in missing.err


def test_what_a_model_computes_in_is_asked_for_where_it_is_loaded(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c4.jsonl").write_text(json.dumps({"text": "one of the words " * 20}) + "\n")
    options = ["--c4", "c4.jsonl", "--samples", "1", "--out", "out", "--dtype", "int8"]
    result = run("reproduce", "rivals", *options, "--judge", "none")
    assert result.status == 2
    assert "unknown dtype int8: use auto, float32, bfloat16" in result.err


def test_json_is_what_the_file_holds(run, folder, tmp_path):
    result = run("reproduce", "examples", *SMALL, "--judge", "none", "--json")
    record = json.loads((tmp_path / "out" / "examples.json").read_text())
    assert result.json == {"about": record["about"], "rows": record["rows"]}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["table1", "--out", "out"], "give prompts: --c4 FILE, --eli5 FILE, or both"),
        (["table1", *SMALL, "--batch", "0"], "batch is at least 1; got 0"),
        (["table1", "rivals", *SMALL, "--scheme", "kgv"], "no scheme 'kgv'"),
        (["table1", "rivals", *SMALL, "--only", "length"], "no report 'length'"),
        (["table1", "attacks", *SMALL, "--only", "burn"], "no attack 'burn': choose among delete"),
        (["table1", "rivals", *SMALL, "--strength", "-1"], "a strength is at least 0; got -1"),
        (["table1", "rivals", *SMALL, "--strength", "nan"], "a strength is at least 0; got nan"),
        (["table1", *SMALL, "--samples", "9"], "has 8 rows, fewer than 9 samples"),
        (["table1", *SMALL, "--scored", "33"], "33 tokens cannot be scored of texts of 32"),
        (["table1", *SMALL, "--delta", "-1"], "green tokens, from 0 to 1000; got -1"),
        (["table1", "--c4", "none", "--out", "out"], "cannot read none"),
        (["table3", *SMALL, "--judge", "none/at/all"], "cannot load the judge none/at/all"),
        (["table2", *SMALL, "--endpoint", "ftp://x"], "an endpoint starts with http"),
        (["table1", *SMALL, "--workers", "2"], "--workers is for --engine ray"),
        (["table1", *SMALL, "--ray-address", "x"], "--ray-address is for --engine ray"),
        (["table2", *SMALL, "--dipper", "/nonexistent"], "there is no folder /nonexistent"),
        (["table1", *SMALL, "--engine", "ray", "--workers", "0"], "at least 1 worker; got 0"),
        (["table1", *SMALL, "--engine", "ray", "--device", "cuda"], "--dtype are for --engine loc"),
        (["table1", *SMALL, "--engine", "ray", "--dtype", "float16"], "are for --engine local"),
        (["rivals", *SMALL, "--order", "origin"], "no order 'origin' to compare in: choose one"),
        (["rivals", *SMALL, "--keys", "0"], "at least 1 key is needed; got 0"),
        (
            ["rivals", *SMALL, "--judge", "none", "--second-judge", "no.gguf"],
            "cannot load the judge no.gguf",
        ),
    ],
)
def test_a_mistake_is_one_line(run, folder, arguments, reason):
    result = run("reproduce", *arguments)
    assert result.status == 2
    assert reason in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert folder == []


def test_texts_that_are_all_too_short_show_after_the_first_of_them(
    run, folder, tmp_path, monkeypatch
):
    written = []

    def write_short(model, batch):
        written.append(batch.setting.strategy)
        return [{"prompt": one, "text": "w1", "ids": [5, 6]} for one in batch.prompts]

    monkeypatch.setattr("dllmark.experiments.batches.write_batch", write_short)
    batches = ["--batch", "4"]
    result = run("reproduce", "table1", *SMALL, *batches)
    assert result.status == 2
    assert "none of the first 8 unmarked C4 texts has the 30 tokens that are scored" in result.err
    assert "--suppress-end" in result.err
    assert written == [None, None]
    again = run("reproduce", "table1", *SMALL, *batches)
    assert (again.err, written) == (result.err, [None, None])


def test_texts_of_any_length_count_where_length_is_what_is_measured(run, folder, monkeypatch):
    def write_short(model, batch):
        ids = [*range(5, 33)]
        mark = batch.key and batch.key.identity.to_dict()
        return [{"prompt": p, "text": "w1", "ids": ids, "watermark": mark} for p in batch.prompts]

    monkeypatch.setattr("dllmark.experiments.batches.write_batch", write_short)
    result = run("reproduce", "lengths", *SMALL)
    assert result.status == 0, result.err


@pytest.mark.parametrize("name", ["figure2", "figure3", "frontier", "lengths"])
def test_a_plot_that_cannot_be_drawn_shows_before_the_writing(run, folder, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("reproduce", "table1", name, *SMALL)
    assert (result.status, folder) == (2, [])
    assert "a plot needs matplotlib: pip install" in result.err


def test_two_runs_do_not_write_to_one_folder(run, folder, tmp_path):
    with only_writer_in(tmp_path / "out"):
        result = run("reproduce", "table1", *SMALL)
    assert (result.status, folder) == (2, [])
    assert "another run is writing to out: wait for it to end" in result.err
