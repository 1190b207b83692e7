"""`dllmark report` measures what a model writes, and goes on where it was stopped."""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dllmark.commands.sampler_options import make_sampler
from dllmark.detection.detector import Detector
from dllmark.experiments import batches
from dllmark.models.loading import EMBEDDED


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


TINY = ("config.json", "tokenizer.json", "model.safetensors.index.json",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")  # fmt: skip
FIRST, LAST = TINY[-2:]


@pytest.fixture
def small(loaded_models, small_key, tmp_path, monkeypatch):
    """A small model in place of every other, its files, its key, prompts and nulls."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    for name in TINY:
        (tmp_path / "tiny" / name).write_bytes(name.encode() * 200_000)
    index = {"weight_map": {"b": LAST, "a": FIRST, "c": LAST}}
    (tmp_path / "tiny" / TINY[2]).write_text(json.dumps(index))
    small_key.save(tmp_path / "small.key")
    lines(tmp_path / "prompts.jsonl", [{"prompt": f"w{number}"} for number in range(6)])
    text = " ".join(f"w{number * number % 31}" for number in range(60))
    lines(tmp_path / "nulls.jsonl", [f"w{number} {text}" for number in range(6)])
    return loaded_models


SMALL = ["report", "--key", "small.key", "--model", "tiny", "--prompts", "prompts.jsonl",
         "--nulls", "nulls.jsonl", "--judge", "none", "--batch", "3", "--tokens", "64"]  # fmt: skip
KGW = [*SMALL, "--strategy", "kgw"]
"""Writes much faster, where it is no matter how texts are marked."""


@dataclass
class Report:
    """A report of a small model, and what was seen as it was made."""

    record: dict = field(default_factory=dict)
    samplers: list = field(default_factory=list)
    opened: list = field(default_factory=list)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The reports that tests begin with, by model, and a folder for their files."""
    return {}, tmp_path_factory.mktemp("reports")


@pytest.fixture
def report(run, small, reports, monkeypatch):
    """Put a finished report of a model into `out`: its texts are written for the first test only.

    What happens later is not seen any more.
    """
    made, folder = reports

    def report(model="tiny"):
        if model in made:
            shutil.copytree(folder / model, "out")
            return made[model]
        seen, open_file, sampler_of = Report(), Path.open, batches.sampler_of

        def noted_file(path, *mode, **options):
            seen.opened.append(path.name)
            return open_file(path, *mode, **options)

        def noted_sampler(*parts):
            seen.samplers.append(sampler_of(*parts))
            return seen.samplers[-1]

        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", noted_file)
            patched.setattr(batches, "sampler_of", noted_sampler)
            seen.record = run(*SMALL, "--model", model, "-o", "out", "--json").json
        shutil.copytree("out", folder / model)
        made[model] = seen
        return seen

    return report


def stop_at(number, monkeypatch):
    """Stop whatever writes at its batch of this number; return those it began, as they come."""
    write, written = batches.write_batch, []

    def stopped(model, batch):
        written.append(batch)
        if len(written) == number:
            raise KeyboardInterrupt
        return write(model, batch)

    monkeypatch.setattr(batches, "write_batch", stopped)
    return written


@pytest.mark.parametrize(("delta", "weak"), [(0.2, True), (20.0, False)])
def test_a_weak_setting_is_said_not_to_detect_reliably(run, small, delta, weak):
    result = run(*KGW, "-o", "out", "--delta", delta)
    assert result.status == 0, result.err
    assert ("does not detect reliably" in result.out) == weak


def test_texts_too_short_to_say_anything_show_before_the_marked_are_written(run, small, tmp_path):
    result = run(*SMALL, "-o", "out", "--tokens", "32")
    assert result.status == 2
    assert "0 of 6 unmarked texts have 50 tokens, too few to say anything" in result.err
    assert [path.name for path in (tmp_path / "out").rglob("texts/*/*.jsonl")] == [
        "unmarked-t0.8-p2.jsonl"
    ]


def test_a_report_goes_on_where_it_was_stopped(
    run, small, report, small_key, endless, tmp_path, monkeypatch
):
    whole = report().record
    shutil.rmtree(tmp_path / "out")
    small.clear()
    written = stop_at(3, monkeypatch)
    assert run(*SMALL, "-o", "out").status == 130
    assert small == ["tiny"]
    assert not (tmp_path / "out" / "report.json").exists()
    again = run(*SMALL, "-o", "out", "--json").json
    assert len(written) == 5  # the third of four batches is written again, and the fourth
    assert again["detection"] == whole["detection"]
    assert again["robustness"] == whole["robustness"]
    step = again["cost"]["step"]
    assert (step["batch"], step["marked"] > 0) == (3, True)
    assert " texts in 0:00:" in again["made"]["texts"]
    third = run(*SMALL, "-o", "out", "--json").json
    assert (third["detection"], len(written)) == (whole["detection"], 5)
    texts = [*(tmp_path / "out" / "texts" / "answered").glob("*.jsonl")]
    assert len(texts) == 2
    assert not (tmp_path / "out" / "keys").exists()
    [marked] = [path for path in texts if "unmarked" not in path.name]
    detector = Detector(small_key, endless.tokenizer)
    last = whole["detection"]["curve"][-1]
    length = last["tokens"]
    texts = [json.loads(line)["text"] for line in marked.read_text().splitlines()]
    encoded = [endless.tokenizer.encode(text) for text in texts]
    p_values = [detector.detect(ids[:length]).p_value for ids in encoded if len(ids) >= length]
    hits = sum(p_value <= 0.01 for p_value in p_values)
    assert (last["found"]["hits"], last["found"]["count"]) == (hits, len(p_values))


def test_quick_takes_few_prompts_and_tokens(run, small, tmp_path, monkeypatch):
    monkeypatch.setattr("dllmark.commands.report.QUICK_PROMPTS", 5)
    monkeypatch.setattr("dllmark.commands.report.QUICK_TOKENS", 56)
    arguments = [one for one in SMALL if one not in ("--tokens", "64")]
    record = run(*arguments, "-o", "out", "--quick", "--plain", "--json").json
    assert record["settings"]["tokens a text"] == 56
    assert record["settings"]["prompts"] == "5, continued"
    assert record["detection"]["texts"] == 5


@pytest.mark.parametrize("model", ["embedded", "tiny"])
def test_a_report_is_of_texts_as_generate_writes_them(report, model):
    made = report(model)
    said = made.record["settings"]
    usual = make_sampler("llada", 64, {}, model)
    assert set(made.samplers) == {usual}
    told = said["cache"], said["block"], said["apart"], said["tokens a step"]
    assert told == (usual.cache, usual.block_length, usual.apart, 64 // usual.steps)


def digests(folder):
    """The files of the small model with their SHA-256, by hashlib."""
    return [(n, hashlib.sha256((folder / "tiny" / n).read_bytes()).hexdigest()) for n in TINY]


def told(record):
    """The files of the model with their SHA-256, as a report tells them."""
    return [(one["name"], one["sha256"]) for one in record["inputs"] if one["purpose"] == "model"]


def test_a_report_tells_the_hash_of_every_file_of_the_model(report, tmp_path):
    record = report().record
    assert told(record) == digests(tmp_path)
    assert [one["purpose"] for one in record["inputs"]] == ["prompts", *["model"] * 5, "nulls"]
    assert {one["rows"] for one in record["inputs"]} == {6, None}
    page = (tmp_path / "out" / "report.html").read_text()
    for name, digest in digests(tmp_path):
        assert f'<th scope="row">model</th><td>{name}</td><td>–</td>' in page
        assert digest in page
    kept = (tmp_path / "out" / "model.sha256").read_text()
    assert kept == "".join(f"{digest}  {name}\n" for name, digest in digests(tmp_path))
    for text in (page, kept, json.dumps(record["inputs"])):
        assert str(tmp_path) not in text


def test_the_files_of_the_embedded_model_are_told_too(report):
    record = report("embedded").record
    names = ["config.json", "tokenizer.json", "model.safetensors"]
    contents = [(EMBEDDED / name).read_bytes() for name in names]
    expected = [hashlib.sha256(content).hexdigest() for content in contents]
    assert told(record) == [*zip(names, expected, strict=True)]


def test_another_shard_makes_another_report(run, report, tmp_path):
    before = told(report().record)
    (tmp_path / "tiny" / LAST).write_bytes(b"other weights")
    after = told(run(*KGW, "-o", "two", "--json").json)
    assert after == digests(tmp_path)
    assert {name for name, _ in set(before) ^ set(after)} == {LAST}


def test_the_files_of_the_model_are_read_once_a_run(report):
    opened = report().opened
    assert [opened.count(shard) for shard in (FIRST, LAST)] == [1, 1]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_report_does_not_go_on_with_other_weights(
    run, small, report, tmp_path, monkeypatch, stopped
):
    if not stopped:
        report()
    written = stop_at(3, monkeypatch)
    assert run(*SMALL, "-o", "out").status == (130 if stopped else 0)
    shard, count = tmp_path / "tiny" / LAST, len(written)
    weights = shard.read_bytes()
    shard.write_bytes(b"other weights")
    result = run(*SMALL, "-o", "out")
    assert result.status == 2
    assert f"{LAST} is not the one that wrote the texts in out (files of the mo" in result.err
    assert "differ from out/model.sha256: 1): give another output folder, or the" in result.err
    assert len(written) == count
    shard.write_bytes(weights)
    assert told(run(*SMALL, "-o", "out", "--json").json) == digests(tmp_path)


def test_other_weights_are_welcome_as_long_as_there_is_no_text(run, small, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_at(1, patched)
        assert run(*KGW, "-o", "out").status == 130
    (tmp_path / "tiny" / FIRST).write_bytes(b"downloaded again")
    assert told(run(*KGW, "-o", "out", "--json").json) == digests(tmp_path)


def test_texts_of_unknown_weights_are_taken_as_given_texts_only(run, report, tmp_path):
    report()
    (tmp_path / "out" / "model.sha256").unlink()
    result = run(*SMALL, "-o", "out")
    assert result.status == 2
    assert "nothing says which weights wrote the texts in out: give another out" in result.err
    assert "or these texts as --marked and --unmarked" in result.err
    [marked, unmarked] = sorted((tmp_path / "out" / "texts" / "answered").glob("*.jsonl"))
    others = [one for one in SMALL if one not in ("--prompts", "prompts.jsonl", "--tokens", "64")]
    texts = ["--marked", marked, "--unmarked", unmarked]
    given = run(*others, *texts, "-o", "given", "--json")
    assert given.status == 0, given.err
    assert told(given.json) == []
    assert any("takes the files at their word" in line for line in given.json["not_tested"])


def test_a_shard_that_is_not_there_is_said_before_anything_is_written(run, small, tmp_path):
    (tmp_path / "tiny" / FIRST).unlink()
    result = run(*SMALL, "-o", "out")
    assert result.status == 2
    assert f"{FIRST} is not in tiny though model.safetensors.index.json names it" in result.err
    assert not [*(tmp_path / "out").rglob("*.jsonl")]


def test_where_there_is_no_terminal_hashing_says_how_far_it_is(run, report, monkeypatch):
    report()
    monkeypatch.setattr("dllmark.terminal.SILENCE", 0.0)
    result = run(*SMALL, "-o", "out")
    assert "hashing the model (MB): 100 %" in result.err
