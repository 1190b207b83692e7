"""`calibrate`: how often unmarked texts are hit, and what it cannot work with."""

import json
import re
import sys

import pytest
from samples import plain_text


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture(scope="module")
def null_file(tokenizer, tmp_path_factory):
    """1100 texts of 40 words that no key has marked."""
    path = tmp_path_factory.mktemp("null") / "null.jsonl"
    texts = (plain_text(tokenizer, 40, seed) for seed in range(1100))
    path.write_text(lines(*({"text": text} for text in texts)))
    return path


def test_calibration_reports_each_rate_with_intervals(run, key, key_file, null_file):
    record = run("calibrate", null_file, "--key", key_file, "--json").json
    assert (record["texts"], record["key_id"]) == (1100, key.id)
    assert [row["fpr"] for row in record["rows"]] == [0.05, 0.01, 0.005, 0.001]
    assert all(row["observed"]["low"] <= row["fpr"] for row in record["rows"])
    assert key.secret.reveal().hex() not in json.dumps(record)
    assert 0 < record["fairness"]["against_share"] <= 0.01


def test_calibration_shows_a_table_and_draws_a_plot(run, key, key_file, null_file, tmp_path):
    result = run("calibrate", null_file, "--key", key_file, "--plot", tmp_path / "plot.png")
    assert result.status == 0
    for rate in ("5 %", "1 %", "0.5 %", "0.1 %"):
        assert f" {rate} " in result.out
    assert f"1100 texts, key {key.id}: z " in result.out
    assert re.search(r"Ordinary text is \d\d\.\d\d % green under this key", result.out)
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


def test_calibration_takes_one_key(run, key_file):
    result = run("calibrate", "-", "--key", key_file, "--key", key_file, stdin=lines("a text"))
    assert (result.status, result.out) == (2, "")
    assert "calibrate works with one key, and 2 are given" in result.err
