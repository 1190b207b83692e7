"""Many texts at once: detection line by line, calibration, and pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import plain_text


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def null_file(tokenizer, tmp_path):
    """1100 texts of 40 words that no key has marked."""
    texts = (plain_text(tokenizer, 40, seed) for seed in range(1100))
    (tmp_path / "null.jsonl").write_text(lines(*({"text": text} for text in texts)))
    return tmp_path / "null.jsonl"


def test_each_line_gets_a_result_in_order(run, key_file, marked, plain, tmp_path):
    (tmp_path / "texts.jsonl").write_text(lines({"text": plain}, marked, "Word.", ""))
    result = run("detect", tmp_path / "texts.jsonl", "--key", key_file)
    shown = [line.split("\t")[:2] for line in result.out.splitlines()]
    verdicts = ["not detected", "watermarked", "too short", "too short"]
    sources = [f"{tmp_path / 'texts.jsonl'}:{number}" for number in range(1, 5)]
    assert shown == [list(line) for line in zip(sources, verdicts, strict=True)]


def test_the_exit_status_is_the_best_verdict_of_all_lines(run, key_file, marked, plain):
    cases = {0: ["Word.", plain, marked], 1: ["Word.", plain], 3: ["Word.", "Word."]}
    for status, texts in cases.items():
        assert run("detect", "--jsonl", "--key", key_file, stdin=lines(*texts)).status == status


def test_jsonl_that_is_scored_as_one_text_is_remarked_on(run, key_file, plain):
    result = run("detect", "--key", key_file, stdin=lines({"text": plain}, {"text": plain}))
    assert "looks like JSONL: --jsonl scores the text of each line" in result.err
    assert result.out.startswith("not detected")
    for text in (plain, '{"text": 1}', "{}", "{x", '{"text": "\\ud800"}'):
        assert "JSONL" not in run("detect", "--key", key_file, stdin=text).err


def test_a_bad_line_is_reported_and_the_others_are_scored(run, key_file, marked):
    stdin = b"\xff\n" + lines(marked, {"txt": 1}, marked).encode() + b"{\n"
    result = run("detect", "--jsonl", "--json", "--key", key_file, stdin=stdin)
    assert result.status == 2
    assert [record["verdict"] for record in result.records] == ["watermarked"] * 2
    numbers = [line.split(":")[2] for line in result.err.splitlines()]
    assert numbers == ["1", "3", "5"]


def test_only_bad_lines_are_an_error(run, key_file):
    result = run("detect", "--jsonl", "--key", key_file, stdin="no\njson\n")
    assert (result.status, result.out, result.err.count("error: ")) == (2, "", 2)


def test_no_lines_are_an_error(run, key_file):
    result = run("detect", "--jsonl", "--key", key_file, stdin="\n\n")
    assert (result.status, result.out) == (2, "")
    assert "is empty: it needs at least one text" in result.err


def test_json_lines_hold_the_details_asked_for(run, key_file, marked):
    options = ["--jsonl", "--json", "--explain", "--spans", "--key", key_file]
    first, second = run("detect", *options, stdin=lines(marked, "Two words")).records
    assert (len(first["tokens"]), len(first["spans"])) == (200, 1)
    assert (len(second["tokens"]), len(second["spans"])) == (2, 0)


@pytest.mark.parametrize(
    "claim",
    [{"key_id": "0" * 16}, {"gamma": 0.25}, {"tokenizer": "sha256:x"}, {"scheme": "dllmark-0"}],
    ids=lambda claim: next(iter(claim)),
)
def test_a_text_of_another_watermark_is_an_error_and_not_a_score(run, key, key_file, marked, claim):
    ours = key.identity.to_dict()
    stdin = lines({"text": marked, "watermark": ours}, {"text": marked, "watermark": ours | claim})
    result = run("detect", "--jsonl", "--json", "--key", key_file, stdin=stdin)
    assert (result.status, len(result.records)) == (2, 1)
    assert f":2: the text was marked with {next(iter(claim))} " in result.err


def test_a_record_that_names_no_watermark_claims_nothing_and_an_empty_one_matches_none(
    run, key_file, marked
):
    stdin = lines({"text": marked, "watermark": None}, {"text": marked, "watermark": {}})
    result = run("detect", "--jsonl", "--json", "--key", key_file, stdin=stdin)
    assert (result.status, len(result.records)) == (2, 1)


def test_calibration_reports_each_rate_with_intervals(run, key, key_file, null_file):
    record = run("calibrate", null_file, "--key", key_file, "--json").json
    assert (record["texts"], record["key_id"]) == (1100, key.id)
    assert [row["fpr"] for row in record["rows"]] == [0.05, 0.01, 0.005, 0.001]
    assert all(row["observed"]["low"] <= row["fpr"] for row in record["rows"])
    assert key.secret.reveal().hex() not in json.dumps(record)


def test_calibration_shows_a_table_and_draws_a_plot(run, key, key_file, null_file, tmp_path):
    result = run("calibrate", null_file, "--key", key_file, "--plot", tmp_path / "plot.png")
    assert result.status == 0
    for rate in ("5 %", "1 %", "0.5 %", "0.1 %"):
        assert f" {rate} " in result.out
    assert f"1100 texts, key {key.id}: z " in result.out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_calibration_stops_at_a_line_it_cannot_score(run, key_file):
    result = run("calibrate", "-", "--key", key_file, stdin='"a text"\nno JSON\n')
    assert (result.status, result.out) == (2, "")
    assert ':2: not a line of JSON: write each as {"text": "..."}' in result.err


def test_calibration_needs_texts(run, key_file):
    result = run("calibrate", "-", "--key", key_file)
    assert (result.status, result.out) == (2, "")
    assert "is empty" in result.err


@pytest.mark.parametrize("name", ["missing/plot.png", "."])
def test_a_plot_that_cannot_be_written_is_a_clear_error(run, key_file, tmp_path, name):
    options = ["--key", key_file, "--plot", tmp_path / name]
    result = run("calibrate", "-", *options, stdin=lines("a text"))
    assert result.status == 2
    assert f"cannot write to {tmp_path / name}" in result.err


def test_a_plot_without_matplotlib_is_refused_before_the_work(run, key_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["--key", key_file, "--plot", "plot.png"]
    result = run("calibrate", "-", *options, stdin="no JSON")
    assert result.status == 2
    assert "pip install 'dllmark[eval]'" in result.err


SCRIPT = Path(sys.executable).with_name("dllmark")


def test_the_installed_command_works_in_a_pipe(key_file, marked):
    command = [SCRIPT, "detect", "--jsonl", "--json", "--key", key_file]
    done = subprocess.run(command, input=lines(marked).encode(), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["verdict"] == "watermarked"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_left_is_not_taken_for_a_verdict(run, key_file, marked, monkeypatch, options):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with open(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        result = run("detect", *options, "--key", key_file, stdin=marked)
    assert (result.status, result.err) == (2, "")
