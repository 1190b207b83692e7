"""Payloads on the command line: written, recognised, found in a corpus, and refused when wrong."""

import json

import pytest
from samples import marked_text, plain_text

from dllmark.relation.payload import Payloads

STRONG = ["--tokens", "48", "--steps", "12", "--temperature", "1", "--suppress-end"]
STRONG += ["--strategy", "expected-bidirectional", "--delta", "4", "--cache", "block"]


@pytest.fixture
def customers(tmp_path):
    """A list of payloads."""
    path = tmp_path / "customers.txt"
    path.write_text("acme\nglobex\ninitech\n")
    return path


def test_what_is_written_with_a_payload_is_detected_with_it(run, key, key_file, tmp_path):
    path, bits = tmp_path / "texts.jsonl", ["--payload-bits", "8"]
    write = ["generate", "Tell a story.", "--key", key_file, "--payload", "47", *bits, *STRONG]
    written = run(*write, "-o", path)
    assert written.status == 0, written.err
    record = json.loads(path.read_text())
    own = Payloads(8).key(key, 47)
    assert record["watermark"] == own.identity.to_dict()
    facts = {name: record["settings"][name] for name in ("payload", "payload_bits", "master")}
    assert facts == {"payload": 47, "payload_bits": 8, "master": key.id}
    for secret in (key.secret, own.secret):
        assert secret.reveal().hex() not in path.read_text()

    found = run("detect", path, "--key", key_file, "--payload", *bits, "--json")
    assert found.status == 0, found.err
    assert (found.json["payload"], found.json["keys_tried"]) == (47, 256)
    assert found.json["key_id"] == own.id
    assert run("detect", path, "--key", key_file, "--payload").status == 2  # of 16 bits: not its

    assert run(*write, "-o", path).status == 0  # the same settings continue the file
    other = [*write[:5], "48", *write[6:], "-o", path]
    assert "carries another mark than this run makes" in run(*other).err


@pytest.mark.parametrize(("payload", "shown"), [("globex", "watermarked, payload globex")])
def test_the_payload_of_a_list_is_named(run, key, key_file, tokenizer, customers, payload, shown):
    text = marked_text(key.derive(payload), tokenizer, 60)
    options = ["--key", key_file, "--payload", "--payloads", customers]
    result = run("detect", "-", *options, stdin=text)
    assert (result.status, result.err) == (0, "")
    assert shown in result.out and "(best of 3)" in " ".join(result.out.split())


def test_a_text_that_two_payloads_fit_is_marked_and_its_payload_unclear(
    run, key, key_file, tokenizer, customers
):
    """Where even the best of all texts leaves a choice: half by one customer, half by another."""
    text = marked_text(key.derive("acme"), tokenizer, 80) + marked_text(
        key.derive("globex"), tokenizer, 80, seed=1
    )
    options = ["--key", key_file, "--payload", "--payloads", customers]
    result = run("detect", "-", *options, stdin=text)
    assert (result.status, "marked, payload unclear" in result.out) == (0, True)
    assert run("detect", "-", *options, "--json", stdin=text).json["payload"] is None
    lines = run("detect", "-", *options, "--jsonl", stdin=json.dumps({"text": text}))
    shown = lines.out.split("\t")[1]
    assert shown == "marked, payload unclear (clear evidence, rate 1 %)"


def test_a_text_without_a_payload_is_not_detected(run, key_file, marked, plain):
    for text in (marked, plain):  # the key's own mark is none of its payloads
        result = run(
            "detect", "-", "--key", key_file, "--payload", "--payload-bits", 8, "--json", stdin=text
        )
        assert (result.status, result.json["verdict"]) == (1, "not detected")
        assert result.json["payload"] is None


def test_details_are_those_of_the_payload_that_fits(run, key, key_file, tokenizer):
    text = marked_text(Payloads(8).key(key, 7), tokenizer, 60)
    options = ["--key", key_file, "--payload", "--payload-bits", 8, "--explain", "--spans"]
    found = run("detect", "-", *options, "--json", stdin=text).json
    assert {token["mark"] for token in found["tokens"][1:]} == {"green"}
    assert len(found["spans"]) == 1


WRONG = {
    "out of range": (["--payload", "65536"], "lies between 0 and 65,535; got 65,536"),
    "not a number": (["--payload", "acme"], "whole number; got 'acme'. For texts, give the list"),
    "no bits": (["--payload", "1", "--payload-bits", "0"], "1 to 20 bits; got 0"),
    "too many bits": (["--payload", "1", "--payload-bits", "21"], "1 to 20 bits; got 21"),
    "not in the list": (["--payload", "umbrella", "--payloads", "LIST"], "is not in the list"),
    "both": (["--payload", "1", "--payload-bits", "8", "--payloads", "LIST"], "not both"),
    "bits alone": (["--payload-bits", "8"], "give --payload too"),
    "list alone": (["--payloads", "LIST"], "give --payload too"),
    "no list": (["--payload", "acme", "--payloads", "none.txt"], "cannot read none.txt"),
    "no mark": (["--payload", "1", "--no-watermark"], "without a mark carries no payload"),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_a_payload_that_cannot_be_written_is_an_error_and_never_an_unmarked_text(
    run, key_file, customers, monkeypatch, arguments, reason
):
    monkeypatch.setattr("dllmark.models.loading.load_model", lambda source: pytest.fail("loaded"))
    arguments = [customers if one == "LIST" else one for one in arguments]
    result = run("generate", "A", "--key", key_file, *arguments)
    assert (result.status, result.out) == (2, "")
    assert reason in result.err


def test_payloads_are_looked_for_under_one_key_by_distinct_pairs(
    run, key_file, other_key_file, tmp_path
):
    both = ["--key", key_file, "--key", other_key_file, "--payload"]
    for command in (["detect", "-"], ["scan", tmp_path, "-o", tmp_path / "out"]):
        result = run(*command, *both, stdin="a text")
        assert (result.status, "under one key, and 2 are given" in result.err) == (2, True)
    every = ["--payload", "--scoring", "all"]
    assert "leave out --scoring" in run("detect", "-", "--key", key_file, *every, stdin="a").err
    wrong = run("detect", "-", "--key", key_file, "--payload-bits", "8", stdin="a text")
    assert (wrong.status, "give --payload too" in wrong.err) == (2, True)


def test_a_scan_says_which_payloads_it_found(
    run, key, key_file, tokenizer, customers, tmp_path, scan_environment
):
    pytest.importorskip("pyarrow", reason="pip install 'dllmark[scan]'")
    from corpora import rows

    texts = [marked_text(key.derive(name), tokenizer, 60) for name in ("acme", "acme", "initech")]
    texts += [plain_text(tokenizer, 60, seed) for seed in range(3)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    out, listed = tmp_path / "out", ["--payload", "--payloads", customers]
    scan = ["scan", corpus, "--key", key_file, "-o", out, "--workers", 1]
    result = run(*scan, *listed, "--json")
    assert result.status == 0, result.err
    assert result.json["watermarked_by_payload"] == [
        {"payload": "acme", "watermarked": 2}, {"payload": "initech", "watermarked": 1},
    ]  # fmt: skip
    found = [row["payload"] for row in sorted(rows(out), key=lambda row: row["row"])]
    assert found == ["acme", "acme", "initech", None, None, None]
    assert "| 2 | acme |" in (out / "summary.md").read_text()

    customers.write_text("acme\nglobex\n")
    changed = run(*scan, *listed)
    assert (changed.status, "a scan with another payloads" in changed.err) == (2, True)
    assert run(*scan).status == 2
