"""Many texts at once: detection line by line, and pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_each_line_gets_a_result_in_order(run, key_file, marked, plain, tmp_path):
    (tmp_path / "texts.jsonl").write_text(lines({"text": plain}, marked, "Word.", ""))
    result = run("detect", tmp_path / "texts.jsonl", "--key", key_file)
    shown = [line.partition(" (")[0].split("\t") for line in result.out.splitlines()]
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


def test_each_line_is_tried_with_every_key(run, key, key_file, other_key_file, marked, plain):
    keys = ["--key", other_key_file, "--key", key_file]
    ours = key.identity.to_dict()
    stdin = lines(plain, marked, {"text": marked, "watermark": ours}, {"text": "", "watermark": {}})
    result = run("detect", "--jsonl", "--json", *keys, stdin=stdin)
    verdicts = ["not detected", "watermarked", "watermarked"]
    assert [record["verdict"] for record in result.records] == verdicts
    assert {record["keys_tried"] for record in result.records} == {2}
    assert (result.status, ":4: the text was marked with key_id None" in result.err) == (2, True)


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
