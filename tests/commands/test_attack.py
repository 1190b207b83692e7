"""`dllmark attack`: lines in, attacked lines out, and runs that go on where they stopped."""

import json
import re
from pathlib import Path

import pytest
from chat_server import send
from samples import marked_text, plain_text

from dllmark.attacks.characters import TEXT_ATTACKS
from dllmark.attacks.tokens import TOKEN_ATTACKS
from dllmark.files import only_writer_of

SECRET = "sk-not-for-any-log"
LOCAL = [*TOKEN_ATTACKS, *TEXT_ATTACKS]


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def source(tokenizer, tmp_path):
    """Four texts, with what `dllmark generate` writes with them."""
    records = [
        {"prompt": "p", "text": plain_text(tokenizer, 60, seed), "ids": [1], "n": seed}
        for seed in range(4)
    ]
    (tmp_path / "in.jsonl").write_text(lines(*records))
    return tmp_path / "in.jsonl"


@pytest.mark.parametrize("name", LOCAL)
def test_a_line_keeps_its_entries_but_the_text_and_its_ids(run, source, tmp_path, name):
    output = tmp_path / "out.jsonl"
    result = run("attack", name, "--ratio", "0.2", source, "-o", output, "--seed", 3)
    assert (result.status, result.out) == (0, "")
    assert result.err == f"{output}: 4 texts written\n"
    for before, after in zip(read(source), read(output), strict=True):
        assert after.pop("attack") == {"name": name, "ratio": 0.2, "seed": 3}
        assert after.pop("text") != before.pop("text")
        assert after == {"prompt": "p", "n": before["n"]}


def test_tokens_are_those_of_the_tokenizer_named(run, source, tmp_path, tokenizer):
    run("attack", "delete", "--ratio", "0.25", source, "-o", tmp_path / "out.jsonl")
    for record in read(tmp_path / "out.jsonl"):
        assert len(tokenizer.encode(record["text"])) == 45
    missing = ["--tokenizer", "missing.json"]
    refused = run("attack", "delete", source, "-o", tmp_path / "x.jsonl", *missing)
    assert (refused.status, (tmp_path / "x.jsonl").exists()) == (2, False)
    assert "there is no tokenizer missing.json" in refused.err


def test_the_seed_and_the_line_decide_and_not_the_other_lines(run, source, tmp_path):
    text = read(source)[2]["text"]
    (tmp_path / "other.jsonl").write_text(lines("one", "two", text, text))
    outputs = [tmp_path / f"{number}.jsonl" for number in range(3)]
    run("attack", "delete", source, "-o", outputs[0])
    run("attack", "delete", tmp_path / "other.jsonl", "-o", outputs[1])
    run("attack", "delete", source, "-o", outputs[2], "--seed", 1)
    first, other, seeded = ([record["text"] for record in read(path)] for path in outputs)
    assert first[2] == other[2] != other[3]
    assert first[2] != seeded[2]


def test_an_attack_on_an_attacked_text_remembers_the_first(run, source, tmp_path):
    run("attack", "delete", source, "-o", tmp_path / "a.jsonl")
    run("attack", "case", tmp_path / "a.jsonl", "-o", tmp_path / "b.jsonl")
    [attack, *_] = [record["attack"] for record in read(tmp_path / "b.jsonl")]
    first = {"name": "delete", "ratio": 0.1, "seed": 0}
    assert attack == {"name": "case", "ratio": 0.1, "seed": 0, "after": first}


def test_another_column_and_standard_input_may_be_attacked(run, tmp_path):
    output = tmp_path / "out.jsonl"
    stdin = lines({"answer": "One two", "text": "as it is"})
    options = ["--text-column", "answer", "--ratio", "1", "--json"]
    result = run("attack", "case", "-", "-o", output, *options, stdin=stdin)
    attack = {"name": "case", "ratio": 1.0, "seed": 0}
    assert result.json == {"path": str(output), "texts": 1, "attack": attack}
    assert read(output) == [{"answer": "one Two", "text": "as it is", "attack": attack}]


def test_marked_text_is_pasted_into_human_text(run, key, key_file, tokenizer, plain, tmp_path):
    marked = marked_text(key, tokenizer, 100)
    (tmp_path / "in.jsonl").write_text(lines(marked))
    (tmp_path / "human.jsonl").write_text(lines(*[{"text": plain}] * 9))
    output = tmp_path / "out.jsonl"
    into = ["--into", tmp_path / "human.jsonl", "--ratio", "0.1"]
    assert run("attack", "paste", tmp_path / "in.jsonl", "-o", output, *into).status == 0
    [record] = read(output)
    assert len(record["text"].split()) == 1000
    detection = run("detect", output, "--key", key_file, "--spans", "--json").json
    [span] = detection["spans"]
    assert marked.strip()[20:-20] in record["text"][span["start"] : span["end"]]


REFUSED = {
    "a ratio": (["delete", "in.jsonl", "-o", "x", "--ratio", "1.5"], "from 0 to 1; got 1.5"),
    "a seed": (["delete", "in.jsonl", "-o", "x", "--seed", "-1"], "seed is at least 0; got -1"),
    "the input as output": (["case", "in.jsonl", "-o", "in.jsonl"], "in.jsonl is the input"),
    "a missing input": (["case", "no.jsonl", "-o", "x"], "cannot read no.jsonl"),
    "a missing input and an output": (["case", "no", "-o", "bad.jsonl"], "cannot read no: No"),
    "a missing folder": (["case", "in.jsonl", "-o", "no/x"], "cannot write to no/x"),
    "a missing column": (
        ["case", "in.jsonl", "-o", "x", "--text-column", "t"],
        'no string under "t"',
    ),
    "no JSON": (
        ["case", "bad.jsonl", "-o", "x"],
        'bad.jsonl:2: not a line of JSON: write each as {"text": "..."}',
    ),
    "half a character": (["case", "half.jsonl", "-o", "x"], "half.jsonl:1: the text holds lone"),
    "nothing": (["case", "empty.jsonl", "-o", "x"], "empty.jsonl is empty"),
    "too little human text": (
        ["paste", "in.jsonl", "-o", "x", "--into", "in.jsonl", "--ratio", "0.01"],
        "give more human text",
    ),
    "an endpoint": (
        ["paraphrase", "in.jsonl", "-o", "x", "--endpoint", "ftp://h", "--model", "m"],
        "starts with http",
    ),
    "a timeout": (
        ["paraphrase", "in.jsonl", "-ox", "--endpoint=http://h", "--model=m", "--timeout=0"],
        "the timeout is a number of seconds above 0; got 0.0",
    ),
    "a diversity": (
        ["dipper", "in.jsonl", "-o", "x", "--model", "no", "--lexical", "15"],
        "lexical diversity is 0, 20, 40, 60, 80 or 100; got 15",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), REFUSED.values(), ids=REFUSED)
def test_errors_are_one_line_and_leave_no_file(run, source, monkeypatch, arguments, reason):
    folder = source.parent
    monkeypatch.chdir(folder)
    (folder / "bad.jsonl").write_text('"one"\nno JSON\n')
    (folder / "half.jsonl").write_text('"\\ud800"\n')
    (folder / "empty.jsonl").write_text("\n")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = run("attack", *arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert reason in result.err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.fixture
def paraphrase(run, chat_server, source, tmp_path, monkeypatch):
    """Run a paraphrase of the four texts by the chat_server."""
    monkeypatch.setenv("DLLMARK_API_KEY", SECRET)

    def paraphrase(*options):
        where = ["--endpoint", chat_server.url, "--model", "m"]
        result = run("attack", "paraphrase", source, "-o", tmp_path / "out.jsonl", *where, *options)
        assert SECRET not in result.out + result.err
        return result

    return paraphrase


def test_paraphrases_are_written_in_the_order_of_the_texts(
    paraphrase, chat_server, source, tmp_path
):
    result = paraphrase()
    assert (result.status, result.err) == (
        0,
        f"{tmp_path / 'out.jsonl'}: 4 written, 0 already there\n",
    )
    for number, (before, after) in enumerate(
        zip(read(source), read(tmp_path / "out.jsonl"), strict=True), 1
    ):
        attack = after.pop("attack")
        assert (attack["name"], attack["model"], attack["line"]) == ("paraphrase", "m", number)
        assert after == {"prompt": "p", "text": before["text"].strip().upper(), "n": before["n"]}
    assert SECRET not in (tmp_path / "out.jsonl").read_text()
    assert {headers["Authorization"] for headers in chat_server.headers} == {f"Bearer {SECRET}"}


def test_a_run_that_may_ask_no_more_is_continued_by_the_next(paraphrase, chat_server, tmp_path):
    stopped = paraphrase("--max-requests", "3", "--concurrency", "1")
    assert (stopped.status, len(read(tmp_path / "out.jsonl"))) == (2, 3)
    assert "all 3 requests of --max-requests are used: run again to continue" in stopped.err
    result = paraphrase("--json").json
    assert (result["texts"], result["already there"], len(chat_server.texts)) == (1, 3, 4)
    assert [record["n"] for record in read(tmp_path / "out.jsonl")] == [0, 1, 2, 3]
    again = paraphrase("--json").json
    assert (again["texts"], again["already there"], len(chat_server.texts)) == (0, 4, 4)


def test_a_run_cut_off_anywhere_is_continued_to_the_same_file(paraphrase, chat_server, tmp_path):
    output = tmp_path / "out.jsonl"
    paraphrase()
    whole = output.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in (0, 1, ends[0], ends[0] + 1, ends[2] - 5, len(whole) - 1):
        output.write_bytes(whole[:cut])
        before = len(chat_server.texts)
        assert paraphrase().status == 0
        assert output.read_bytes() == whole
        assert len(chat_server.texts) - before == 4 - whole[:cut].count(b"\n")


def test_texts_given_up_are_named_and_asked_for_again(paraphrase, chat_server, tmp_path):
    chat_server.will(send(400))
    result = paraphrase("--concurrency", "1")
    assert result.status == 2
    assert "line 1 has no paraphrase: it answered 400" in result.err
    assert "1 of 4 texts are missing: run again to ask for them" in result.err
    assert [record["n"] for record in read(tmp_path / "out.jsonl")] == [1, 2, 3]
    assert paraphrase().status == 0
    assert [record["n"] for record in read(tmp_path / "out.jsonl")] == [0, 1, 2, 3]


@pytest.mark.parametrize("change", ["another text", "another model", "no line of ours"])
def test_a_file_of_another_run_is_refused(paraphrase, chat_server, source, tmp_path, change):
    paraphrase()
    output = tmp_path / "out.jsonl"
    if change == "another text":
        source.write_text(source.read_text().replace('"text": "', '"text": "x', 1))
    elif change == "no line of ours":
        output.write_text('"a text"\n')
    before, requests = output.read_bytes(), len(chat_server.texts)
    result = paraphrase(*(["--model", "other"] if change == "another model" else []))
    assert result.status == 2
    assert f"{output}:1 is not of this run" in result.err
    assert (output.read_bytes(), len(chat_server.texts)) == (before, requests)


def test_a_folder_that_is_missing_is_told_before_anything_is_paid(
    run, chat_server, source, tmp_path
):
    where = ["--endpoint", chat_server.url, "--model", "m", "-o", tmp_path / "no" / "out.jsonl"]
    result = run("attack", "paraphrase", source, *where)
    assert (result.status, chat_server.texts) == (2, [])
    assert "make the folder" in result.err


def test_two_runs_do_not_write_to_one_file(paraphrase, run, chat_server, source, tmp_path):
    pytest.importorskip("fcntl")
    output = tmp_path / "out.jsonl"
    with only_writer_of(output):
        for result in (run("attack", "case", source, "-o", output), paraphrase()):
            assert (result.status, result.out) == (2, "")
            assert f"another run is writing to {output}: wait for it to end" in result.err
    assert (chat_server.texts, output.exists()) == ([], False)


def test_an_attacked_file_can_be_paraphrased(paraphrase, run, source, tmp_path):
    run("attack", "truncate", source, "-o", tmp_path / "cut.jsonl")
    source.write_text((tmp_path / "cut.jsonl").read_text())
    assert paraphrase().status == 0
    assert paraphrase("--json").json["already there"] == 4
    assert read(tmp_path / "out.jsonl")[0]["attack"]["after"]["name"] == "truncate"


def test_the_example_of_the_page_on_attacks_runs(capsys):
    page = Path(__file__).parents[2] / "docs" / "attacks.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, page.name, "exec"), {})
    assert capsys.readouterr().out.strip()
