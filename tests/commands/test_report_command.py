"""`dllmark report` measures texts of files, and says what is wrong.

What it writes itself is in test_report_model.py. The page is tested in a browser, in
tests/experiments/test_report_page.py.
"""

import hashlib
import json
from html import escape

import pytest
from samples import marked_text, plain_text


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def strong(key, tokenizer):
    """Texts as a strong mark leaves them."""
    return [marked_text(key, tokenizer, 110, number, 0.95) for number in range(6)]


@pytest.fixture
def files(key, tokenizer, key_file, tmp_path, monkeypatch, strong):
    """Marked, unmarked and null texts, and the arguments that name them."""
    monkeypatch.chdir(tmp_path)
    identity = key.identity.to_dict()
    lines(tmp_path / "marked.jsonl", [
        {"prompt": f"p{n}", "text": text, "watermark": identity, "settings": {"delta": 2.0}}
        for n, text in enumerate(strong)
    ])  # fmt: skip
    plains = [plain_text(tokenizer, 60, number) for number in range(12)]
    rows = [{"prompt": f"p{number}", "text": text} for number, text in enumerate(plains[:6])]
    lines(tmp_path / "unmarked.jsonl", rows)
    rows = [{"kind": "ab"[n % 2], "text": text} for n, text in enumerate(plains[2:])]
    lines(tmp_path / "nulls.jsonl", rows)
    return ["report", "--key", key_file, "--nulls", "nulls.jsonl", "-o", "out", "--judge", "none"]


def test_a_report_of_files_is_a_page_and_the_same_as_json(run, files, key, tmp_path):
    result = run(*files, "--marked", "marked.jsonl", "--unmarked", "unmarked.jsonl", "--json")
    assert result.status == 0, result.err
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    assert result.json == record
    page = (tmp_path / "out" / "report.html").read_text()
    assert escape(record["verdict"]["text"]) in page
    assert record["format"] == "dllmark-report-1"
    assert record["settings"]["key"] == key.id
    assert record["settings"]["delta"] == 2.0  # as the file says
    assert record["cost"]["pairs"] == 6
    assert record["made"]["command"].startswith("dllmark report --key ")
    for file in record["inputs"]:
        content = (tmp_path / file["name"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
        assert file["sha256"] in page
    assert [file["purpose"] for file in record["inputs"]] == ["marked", "unmarked", "nulls"]
    assert all(escape(line) in page for line in record["not_tested"])


def test_no_part_of_a_report_shows_the_secret(run, files, key, tmp_path):
    result = run(*files, "--marked", "marked.jsonl")
    secret = key.secret.reveal()
    shown = result.out + result.err
    shown += "".join(path.read_text() for path in (tmp_path / "out").rglob("*.*"))
    assert key.id in shown
    for form in (secret.hex(), repr(secret), str(list(secret))):
        assert form not in shown


def test_marked_texts_without_prompts_are_measured_but_for_their_cost(run, files, strong, tmp_path):
    lines(tmp_path / "bare.jsonl", strong)
    result = run(*files, "--marked", "bare.jsonl", "--unmarked", "unmarked.jsonl", "--json")
    why = "the marked texts have no prompts"
    assert result.json["cost"]["perplexity"] is None
    assert any(why in line for line in result.json["not_tested"])
    assert why in (tmp_path / "out" / "report.html").read_text()


def test_perplexity_is_judged_in_pairs(run, files, monkeypatch):
    monkeypatch.setattr("dllmark.experiments.evaluation.run.load_judge", lambda name: name)
    judged = []

    def measure(judge, pairs):
        judged.append([prompt for prompt, _ in pairs])
        return [2.0 * len(judged)] * len(pairs)

    monkeypatch.setattr("dllmark.experiments.evaluation.run.perplexities", measure)
    sides = ["--marked", "marked.jsonl", "--unmarked", "unmarked.jsonl"]
    record = run(*files, "--judge", "some", *sides, "--json").json
    assert judged == [[f"p{number}" for number in range(6)]] * 2
    perplexity = record["cost"]["perplexity"]
    assert (perplexity["unmarked"], perplexity["marked"], perplexity["change"]) == (2.0, 4.0, 2.0)
    assert "2.00 times the perplexity" in record["verdict"]["text"]


def test_where_there_is_no_terminal_lines_say_how_far_it_is(run, files, monkeypatch):
    monkeypatch.setattr("dllmark.terminal.SILENCE", 0.0)
    result = run(*files, "--marked", "marked.jsonl")
    assert "scoring nulls: 100 %" in result.err
    assert "attacking: 100 %" in result.err


def test_too_few_nulls_for_a_rate_say_what_can_be_said(run, files):
    record = run(*files, "--marked", "marked.jsonl", "--json").json
    said = [line for line in record["not_tested"] if "rate of 0.01 %" in line]
    assert said == [
        "A false-positive rate of 0.01 %: too few texts: no hit in 10 shows a rate below 30 % "
        "(rule of three); 0.01 % takes 30,000."
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give prompts for the model to write for (--prompts FILE), or marked texts"),
        (["--marked", "marked.jsonl", "--prompts", "p"], "give --prompts or --marked, not both"),
        (["--prompts", "p.jsonl", "--unmarked", "u"], "--unmarked goes with --marked"),
        (["--marked", "none.jsonl"], "cannot read none.jsonl"),
        (["--marked", "empty.jsonl"], "empty.jsonl is empty: it needs at least one text"),
        (["--marked", "marked.jsonl", "--nulls", "empty.jsonl"], "empty.jsonl is empty"),
        (["--marked", "marked.jsonl", "--nulls", "marked.jsonl"], "this text is marked; nulls are"),
        (["--marked", "two.jsonl"], "2 marked texts are too few to say anything: give at least 5"),
        (["--marked", "marked.jsonl", "--fpr", "0"], "the false-positive rate lies in (0, 1)"),
        (["--prompts", "two.jsonl"], 'two.jsonl:1: no string under "prompt"'),
        (["--prompts", "few.jsonl"], "2 prompts are too few to say anything: give at least 5"),
        (["--prompts", "blank.jsonl"], "prompt 1 is empty: give at least one word to start from"),
        (["--marked", "marked.jsonl", "--delta", "0"], "--delta is for --prompts: marked texts"),
        (["--marked", "marked.jsonl", "--quick"], "--quick is for --prompts: marked texts are"),
        (["--prompts", "-"], "by their hashes: give files, not -"),
        (["--prompts", "few.jsonl", "--batch", "0"], "batch is at least 1; got 0"),
        (["--prompts", "few.jsonl", "--strategy", "x"], "no strategy 'x': choose one of"),
        (["--prompts", "few.jsonl", "--delta", "-1"], "green tokens, from 0 to 1000; got -1"),
        (["--prompts", "few.jsonl", "--samples", "0"], "samples is at least 1; got 0"),
    ],
)
def test_a_mistake_is_one_sentence(run, files, tmp_path, arguments, reason):
    (tmp_path / "empty.jsonl").write_text("\n")
    lines(tmp_path / "two.jsonl", [{"text": "a"}, {"text": "b"}])
    lines(tmp_path / "few.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    lines(tmp_path / "blank.jsonl", [{"prompt": " "}])
    result = run(*files, *arguments)
    assert result.status == 2
    assert reason in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "report.html").exists()


def test_a_key_of_another_tokenizer_is_told_what_to_do(run, files, small_tokenizer, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text(small_tokenizer.definition())
    lines(tmp_path / "p.jsonl", [{"prompt": "a"}] * 6)
    for texts in (["--prompts", "p.jsonl"], ["--marked", "marked.jsonl"]):
        result = run(*files, *texts, "--model", "other")
        assert result.status == 2
        assert "is for the tokenizer embedded, but other has another one" in result.err
        assert "make a key for it with `dllmark keygen --model other`" in result.err
