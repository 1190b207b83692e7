"""`dllmark report` measures a model or files, goes on where it was stopped, and says what is wrong.

The page itself is tested in a browser, in tests/experiments/test_report_page.py.
"""

import hashlib
import json
from html import escape
from pathlib import Path

import pytest
from samples import marked_text, plain_text

from dllmark.commands.sampler_options import make_sampler
from dllmark.detection.detector import Detector
from dllmark.experiments import batches
from dllmark.models.loading import EMBEDDED


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
    lines(tmp_path / "prompts.jsonl", [{"prompt": f"w{number}"} for number in range(8)])
    text = " ".join(f"w{number * number % 31}" for number in range(60))
    lines(tmp_path / "nulls.jsonl", [f"w{number} {text}" for number in range(8)])
    return loaded_models


SMALL = ["report", "--key", "small.key", "--model", "tiny", "--prompts", "prompts.jsonl",
         "--nulls", "nulls.jsonl", "--judge", "none", "--batch", "4", "--tokens", "64"]  # fmt: skip


@pytest.mark.parametrize(("delta", "weak"), [(0.2, True), (20.0, False)])
def test_a_weak_setting_is_said_not_to_detect_reliably(run, small, delta, weak):
    result = run(*SMALL, "-o", "out", "--delta", delta)
    assert result.status == 0, result.err
    assert ("does not detect reliably" in result.out) == weak


def test_texts_too_short_to_say_anything_show_before_the_marked_are_written(run, small, tmp_path):
    result = run(*SMALL, "-o", "out", "--tokens", "32")
    assert result.status == 2
    assert "0 of 8 unmarked texts have 50 tokens, too few to say anything" in result.err
    assert [path.name for path in (tmp_path / "out").rglob("texts/*/*.jsonl")] == [
        "unmarked-t0.8-p2.jsonl"
    ]


def test_a_report_goes_on_where_it_was_stopped(
    run, small, small_key, endless, tmp_path, monkeypatch
):
    whole = run(*SMALL, "-o", "whole", "--json").json
    assert small == ["tiny"]
    write, written = batches.write_batch, []

    def killed_in_the_third(model, batch):
        written.append(batch)
        if len(written) == 3:
            raise KeyboardInterrupt
        return write(model, batch)

    monkeypatch.setattr(batches, "write_batch", killed_in_the_third)
    assert run(*SMALL, "-o", "out").status == 130
    assert not (tmp_path / "out" / "report.json").exists()
    again = run(*SMALL, "-o", "out", "--json").json
    assert len(written) == 5  # the third of four batches is written again, and the fourth
    assert again["detection"] == whole["detection"]
    assert again["robustness"] == whole["robustness"]
    step = again["cost"]["step"]
    assert (step["batch"], step["marked"] > 0) == (4, True)
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
def test_a_report_is_of_texts_as_generate_writes_them(run, small, monkeypatch, model):
    samplers, sampler_of = [], batches.sampler_of

    def noted(*parts):
        samplers.append(sampler_of(*parts))
        return samplers[-1]

    monkeypatch.setattr(batches, "sampler_of", noted)
    said = run(*SMALL, "--model", model, "-o", "out", "--json").json["settings"]
    usual = make_sampler("llada", 64, {}, model)
    assert set(samplers) == {usual}
    told = said["cache"], said["block"], said["apart"], said["tokens a step"]
    assert told == (usual.cache, usual.block_length, usual.apart, 64 // usual.steps)


def digests(folder):
    """The files of the small model with their SHA-256, by hashlib."""
    return [(n, hashlib.sha256((folder / "tiny" / n).read_bytes()).hexdigest()) for n in TINY]


def told(record):
    """The files of the model with their SHA-256, as a report tells them."""
    return [(one["name"], one["sha256"]) for one in record["inputs"] if one["purpose"] == "model"]


def test_a_report_tells_the_hash_of_every_file_of_the_model(run, small, tmp_path):
    record = run(*SMALL, "-o", "out", "--json").json
    assert told(record) == digests(tmp_path)
    assert [one["purpose"] for one in record["inputs"]] == ["prompts", *["model"] * 5, "nulls"]
    assert {one["rows"] for one in record["inputs"]} == {8, None}
    page = (tmp_path / "out" / "report.html").read_text()
    for name, digest in digests(tmp_path):
        assert f'<th scope="row">model</th><td>{name}</td><td>–</td>' in page
        assert digest in page
    kept = (tmp_path / "out" / "model.sha256").read_text()
    assert kept == "".join(f"{digest}  {name}\n" for name, digest in digests(tmp_path))
    for text in (page, kept, json.dumps(record["inputs"])):
        assert str(tmp_path) not in text


def test_the_files_of_the_embedded_model_are_told_too(run, small):
    record = run(*SMALL, "--model", "embedded", "-o", "out", "--json").json
    names = ["config.json", "tokenizer.json", "model.safetensors"]
    contents = [(EMBEDDED / name).read_bytes() for name in names]
    expected = [hashlib.sha256(content).hexdigest() for content in contents]
    assert told(record) == [*zip(names, expected, strict=True)]


def test_another_shard_makes_another_report(run, small, tmp_path):
    before = told(run(*SMALL, "-o", "one", "--json").json)
    (tmp_path / "tiny" / LAST).write_bytes(b"other weights")
    after = told(run(*SMALL, "-o", "two", "--json").json)
    assert after == digests(tmp_path)
    assert {name for name, _ in set(before) ^ set(after)} == {LAST}


def test_the_files_of_the_model_are_read_once_a_run(run, small, monkeypatch):
    opened, open_file = [], Path.open

    def noted(path, *mode, **options):
        opened.append(path.name)
        return open_file(path, *mode, **options)

    monkeypatch.setattr(Path, "open", noted)
    assert run(*SMALL, "-o", "out").status == 0
    assert [opened.count(shard) for shard in (FIRST, LAST)] == [1, 1]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_report_does_not_go_on_with_other_weights(run, small, tmp_path, monkeypatch, stopped):
    write, written = batches.write_batch, []

    def killed_in_the_third(model, batch):
        written.append(batch)
        if stopped and len(written) == 3:
            raise KeyboardInterrupt
        return write(model, batch)

    monkeypatch.setattr(batches, "write_batch", killed_in_the_third)
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
    def killed(model, batch):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batches, "write_batch", killed)
        assert run(*SMALL, "-o", "out").status == 130
    (tmp_path / "tiny" / FIRST).write_bytes(b"downloaded again")
    assert told(run(*SMALL, "-o", "out", "--json").json) == digests(tmp_path)


def test_texts_of_unknown_weights_are_taken_as_given_texts_only(run, small, tmp_path):
    assert run(*SMALL, "-o", "out").status == 0
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


def test_where_there_is_no_terminal_hashing_says_how_far_it_is(run, small, monkeypatch):
    monkeypatch.setattr("dllmark.terminal.SILENCE", 0.0)
    result = run(*SMALL, "-o", "out")
    assert "hashing the model (MB): 100 %" in result.err
