"""`detect --report`: the power of a miss is by what `dllmark report` measured."""

import json
import math

import pytest
from samples import marked_text, plain_text

from dllmark.relation.key import Secret, WatermarkKey


@pytest.fixture
def report(run, key, key_file, tokenizer, tmp_path):
    """The report on texts with nine pairs in ten green."""
    for name, texts in {
        "marked": [marked_text(key, tokenizer, 80, seed, share=0.9) for seed in range(12)],
        "nulls": [plain_text(tokenizer, 80, seed) for seed in range(40)],
    }.items():
        lines = (json.dumps({"text": text}) for text in texts)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = ["--marked", tmp_path / "marked.jsonl", "--nulls", tmp_path / "nulls.jsonl"]
    made = run("report", "--key", key_file, *files, "--judge", "none", "-o", tmp_path / "report")
    assert made.status == 0, made.err
    return tmp_path / "report" / "report.json"


def test_a_miss_is_judged_by_the_measured_share(run, key_file, tokenizer, report, tmp_path):
    """And the p-value is what it was."""
    text = plain_text(tokenizer, 50, seed=1)
    options = ["--key", key_file, "--json", "--statement"]
    assumed = run("detect", *options, stdin=text)
    measured = run("detect", *options, "--report", report, stdin=text)
    assert (assumed.status, measured.status) == (3, 1)
    share = json.loads(report.read_text())["detection"]["green_share"]
    assert 0.85 < share < 0.95
    expected = measured.json["expected"]
    odds = share / (1 - share) * expected / (1 - expected)  # gamma is a half: its odds are 1
    assert measured.json["expected_if_marked"] == pytest.approx(odds / (1 + odds))
    assert measured.json["p_value"] == assumed.json["p_value"]
    assert "as was measured" in measured.json["statement"]
    with_payloads = run("detect", *options, "--payload", "--report", report, stdin=text)
    assert with_payloads.json["expected_if_marked"] > 0.85


def test_a_report_on_another_kind_of_key_is_refused(run, tokenizer, report, tmp_path):
    WatermarkKey(Secret(b"another 16 bytes"), 0.25, tokenizer.id).save(tmp_path / "quarter.key")
    result = run("detect", "--key", tmp_path / "quarter.key", "--report", report, stdin="words")
    assert (result.status, result.out) == (2, "")
    assert "is about gamma 0.5" in result.err and "make a report with this key" in result.err


NO_REPORT = {
    "no JSON": "words",
    "another JSON": "[1]",
    "no share": '{"detection": {}, "settings": {}}',
    "no number": json.dumps({"detection": {"green_share": "much"}, "settings": {}}),
}


@pytest.mark.parametrize("content", NO_REPORT.values(), ids=NO_REPORT)
def test_what_is_no_report_is_a_clear_error(run, key_file, tmp_path, content):
    (tmp_path / "report.json").write_text(content)
    result = run("detect", "--key", key_file, "--report", tmp_path / "report.json", stdin="words")
    assert (result.status, result.out) == (2, "")
    assert "is no report.json of `dllmark report`" in result.err


@pytest.mark.parametrize("share", [0.5, 0.31, math.nan])
def test_a_report_that_found_no_mark_says_so(run, key, key_file, tmp_path, share):
    settings = {"γ": 0.5, "tokenizer": f"embedded, {key.tokenizer.fingerprint}"}
    record = {"detection": {"green_share": share}, "settings": settings}
    (tmp_path / "report.json").write_text(json.dumps(record))
    result = run("detect", "--key", key_file, "--report", tmp_path / "report.json", stdin="words")
    assert (result.status, result.out) == (2, "")
    assert "found no mark" in result.err


def test_a_missing_report_is_an_error(run, key_file, tmp_path):
    result = run("detect", "--key", key_file, "--report", tmp_path / "none.json", stdin="words")
    assert (result.status, result.out) == (2, "")
    assert "cannot read" in result.err
