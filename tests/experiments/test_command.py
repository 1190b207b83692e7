"""`dllmark reproduce` writes every form of a report, and says what it cannot do."""

import json
from dataclasses import replace

import pytest
from tiny import tiny_model

import dllmark.models.loading


@pytest.fixture
def folder(small_tokenizer, tmp_path, monkeypatch):
    """A folder with prompts, where every model is a small one."""
    model = replace(tiny_model(small_tokenizer), end_ids=())
    monkeypatch.setattr(dllmark.models.loading, "load_model", lambda source: model)
    monkeypatch.chdir(tmp_path)
    words = " ".join(f"w{number % 32}" for number in range(40))
    rows = [{"text": f"w{number} {words}"} for number in range(8)]
    (tmp_path / "c4.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


SMALL = ["--c4", "c4.jsonl", "--out", "out", "--samples", "8", "--tokens", "32", "--scored", "30",
         "--max-repeats", "1"]  # fmt: skip


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "figure2", "figure3", "examples"])
def test_every_experiment_runs_on_eight_samples(run, folder, name):
    result = run("reproduce", name, *SMALL, "--judge", "none")
    assert result.status == 0
    assert result.out.startswith("# ")
    forms = {path.suffix for path in (folder / "out").glob(f"{name}.*")}
    assert forms == {".md", ".csv", ".json"} | ({".png"} if name.startswith("figure") else set())
    about = json.loads((folder / "out" / f"{name}.json").read_text())["about"]
    assert about["model"] == "tiny"
    assert about["samples"] == 8
    assert " on CPU, torch " in about["ran"]


def test_json_is_what_the_file_holds(run, folder):
    result = run("reproduce", "table1", *SMALL, "--json")
    assert result.json["rows"] == json.loads((folder / "out" / "table1.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["table1", "--out", "out"], "give prompts: --c4 FILE, --eli5 FILE, or both"),
        (["table1", *SMALL, "--batch", "0"], "batch is at least 1; got 0"),
        (["table1", *SMALL, "--samples", "9"], "has 8 rows and 9 samples are asked for"),
        (["table1", *SMALL, "--scored", "33"], "33 tokens cannot be scored of texts of 32"),
        (["table1", "--c4", "none", "--out", "out"], "cannot read none"),
        (["table3", *SMALL, "--judge", "none/at/all"], "cannot load the judge none/at/all"),
        (["table2", *SMALL, "--endpoint", "ftp://x"], "an endpoint starts with http"),
    ],
)
def test_a_mistake_is_one_line(run, folder, arguments, reason):
    result = run("reproduce", *arguments)
    assert result.status == 2
    assert reason in result.err
    assert len(result.err.strip().splitlines()) == 1
