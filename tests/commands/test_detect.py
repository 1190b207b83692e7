"""`detect`: one text, its verdict as the exit status, and what it refuses."""

import hashlib
import io
import json
import math
import os
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from samples import marked_text, plain_text

import dllmark
import dllmark.terminal
from dllmark.relation.tokenizer import EMBEDDED


@pytest.mark.parametrize("from_stdin", [False, True])
def test_the_exit_status_is_the_verdict(run, key_file, marked, plain, tmp_path, from_stdin):
    cases = {"watermarked": (0, marked), "not detected": (1, plain), "too short": (3, "Word.")}
    for verdict, (status, text) in cases.items():
        (tmp_path / "text").write_text(text)
        source = ["-"] if from_stdin else [tmp_path / "text"]
        result = run("detect", *source, "--key", key_file, stdin=text)
        assert (result.status, result.err) == (status, "")
        assert result.out.startswith(f"{verdict} (")


def test_the_key_may_come_from_the_environment(run, key_file, marked, monkeypatch):
    monkeypatch.setenv("DLLMARK_KEY", str(key_file))
    assert run("detect", stdin=marked).status == 0


def test_without_a_key_nothing_is_scored(run, tmp_path):
    result = run("detect")
    assert (result.status, result.out) == (2, "")
    assert "--key" in result.err and "DLLMARK_KEY" in result.err
    result = run("detect", "--key", tmp_path / "missing")
    assert (result.status, result.out) == (2, "")
    assert result.err.endswith("make one with `dllmark keygen`\n")


def test_json_holds_the_evidence_and_no_secret(run, key, key_file, marked):
    result = run("detect", "--key", key_file, "--json", "--fpr", "0.001", stdin=marked)
    expected = dllmark.Detector(key).detect(marked).expected
    assert result.json == {
        "verdict": "watermarked", "z": pytest.approx(199**0.5),
        "p_value": pytest.approx(expected**199), "pairs": 199, "green": 199, "gamma": 0.5,
        "expected": expected, "fpr": 0.001, "scoring": "unique", "key_id": key.id,
        "scheme": "dllmark-1", "keys_tried": 1, "strength": "overwhelming", "power": 0.999,
        "conclusion": "watermarked (overwhelming evidence, rate 0.1 %)",
        "pairs_needed": result.json["pairs_needed"],
        "expected_if_marked": pytest.approx(expected * math.e / (1 + expected * (math.e - 1))),
    }  # fmt: skip
    assert key.secret.reveal().hex() not in result.out


def test_a_line_end_behind_a_text_changes_nothing(run, key_file, other_key_file, marked, tmp_path):
    """Shells, editors and JSONL with or without it: all go through one rule."""
    for keys in (["--key", key_file], ["--key", key_file, "--key", other_key_file]):
        options = [*keys, "--json", "--explain", "--spans"]
        expected = run("detect", *options, stdin=marked).json
        (tmp_path / "text").write_text(marked + "\r\n")
        assert run("detect", tmp_path / "text", *options).json == expected
        assert run("detect", *options, stdin=marked + "\n").json == expected
        line = json.dumps({"text": marked + " \n\n"})
        by_line = run("detect", "--jsonl", *options, stdin=line).json
        assert by_line == {"source": "standard input:1", **expected}


def test_a_repeated_pair_counts_once_unless_all_are_asked_for(run, key_file, marked):
    for scoring, pairs in (("unique", 200), ("all", 599)):
        options = ["--key", key_file, "--json", "--scoring", scoring]
        assert run("detect", *options, stdin=3 * marked).json["pairs"] == pairs


def test_evidence_beyond_floats_is_printed_as_a_bound(run, key, key_file, tokenizer):
    result = run("detect", "--key", key_file, stdin=marked_text(key, tokenizer, 2000))
    assert "p < 1e-300" in result.out


BAD_INPUT = {
    "empty": (b"", "is empty: it needs at least one text"),
    "binary": (b"\x7fELF\0", "this is binary data, not text"),
    "invalid UTF-8": (b"caf\xe9", "byte 3 is not valid UTF-8"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_input_that_is_no_text_is_an_error(run, key_file, content, reason):
    result = run("detect", "--key", key_file, stdin=content)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: ") and reason in result.err


@pytest.mark.parametrize("name", ["missing.txt", "missing.jsonl", "."])
def test_a_file_that_cannot_be_read_is_an_error(run, key_file, tmp_path, name):
    result = run("detect", tmp_path / name, "--key", key_file)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"error: cannot read {tmp_path / name}: ")


def test_standard_input_is_called_that_in_messages(run, key_file):
    assert "standard input" in run("detect", "--key", key_file).err


@pytest.mark.parametrize("fpr", ["0", "1", "nan", "-1"])
def test_a_rate_outside_its_range_is_an_error(run, key_file, fpr):
    result = run("detect", "--key", key_file, "--fpr", fpr, stdin="words")
    assert (result.status, result.out) == (2, "")
    assert "lies in (0, 1)" in result.err


def test_one_line_of_megabytes_is_scored(run, key_file, marked):
    text = marked * (1_200_000 // len(marked))
    result = run("detect", "--key", key_file, "--json", stdin=text)
    assert (result.status, result.json["pairs"]) == (0, 200)
    assert run("detect", "--key", key_file, stdin=b"x" * 1_200_000).status == 3


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("terminal", [False, True])
def test_explain_shows_the_text(run, key_file, monkeypatch, line_end, terminal):
    if terminal:
        console = Console(force_terminal=True, color_system="standard", soft_wrap=True)
        monkeypatch.setattr(dllmark.terminal, "out", console)
    text = ["Some words,", "a dash \u2013 and", "two more 🤷🏽 lines."]
    result = run("detect", "--key", key_file, "--explain", stdin=line_end.join(text))
    marks = "\x1b\\[[0-9;]*m" if terminal else "[+-]"
    assert re.search(marks, result.out)
    assert re.sub(marks, "", result.out.partition("\n")[2]).splitlines()[:3] == text


def test_explain_without_colours_puts_a_sign_behind_each_scored_token(run, key_file, marked):
    result = run("detect", "--key", key_file, "--explain", stdin=marked)
    first, *others = marked.split()
    assert result.out.splitlines()[1] == " ".join(["", first, *(f"{word}+" for word in others)])


def test_explain_names_the_colour_of_each_token(run, key_file, marked):
    tokens = run("detect", "--key", key_file, "--explain", "--json", stdin=marked).json["tokens"]
    assert "".join(token["text"] for token in tokens) == marked
    assert [token["mark"] for token in tokens] == ["not scored"] + ["green"] * 199


def test_spans_tell_where_the_mark_is(run, key_file, tokenizer, marked, plain):
    text = plain + marked + plain_text(tokenizer, 200, seed=1)
    [span] = run("detect", "--key", key_file, "--spans", "--json", stdin=text).json["spans"]
    assert span["start"] == pytest.approx(len(plain), abs=50)
    assert span["end"] == pytest.approx(len(plain + marked), abs=50)
    shown = run("detect", "--key", key_file, "--spans", stdin=text).out.splitlines()[1]
    assert shown.startswith(f"{span['start']}-{span['end']}  p ")
    stretch = text[span["start"] : span["end"]].strip()
    assert shown.endswith(f"  {stretch[:40]} ... {stretch[-15:]}")


def test_a_short_span_is_shown_whole(run, key, tokenizer, tmp_path):
    rare = replace(key, gamma=0.02)
    rare.save(tmp_path / "rare.key")
    text = marked_text(rare, tokenizer, words=5)
    result = run("detect", "--key", tmp_path / "rare.key", "--spans", stdin=text)
    assert result.out.splitlines()[1].endswith(f"  {text.strip()}")


@pytest.mark.parametrize("options", [["--json"], []])
def test_output_that_cannot_hold_a_character_still_shows_the_rest(
    run, key_file, monkeypatch, options
):
    output = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert run("detect", "--key", key_file, "--explain", *options, stdin="naïve").status == 3
    output.flush()
    assert output.buffer.getvalue().count(b"ve") > 0


@pytest.fixture
def own_tokenizer(tmp_path):
    """A tokenizer's own copy in a file, as models have it."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(EMBEDDED.read_bytes())
    return path


@pytest.fixture
def own_key(run, own_tokenizer, tmp_path):
    """A key made for that tokenizer."""
    run("keygen", "-o", tmp_path / "own.key", "--model", own_tokenizer)
    return tmp_path / "own.key"


def test_a_tokenizer_that_changed_since_the_key_was_made_is_an_error(run, own_key, own_tokenizer):
    assert run("detect", "--key", own_key, stdin="Word.").status == 3
    definition = own_tokenizer.read_text().replace('"<|im_end|>"', '"<|the_end|>"')
    own_tokenizer.write_text(definition)
    result = run("detect", "--key", own_key, stdin="Word.")
    assert (result.status, result.out) == (2, "")
    assert "their fingerprints differ, so scores would mean nothing" in result.err


def test_a_tokenizer_that_moved_can_be_pointed_to(run, own_key, own_tokenizer):
    own_tokenizer.rename(own_tokenizer.with_name("moved.json"))
    result = run("detect", "--key", own_key, stdin="Word.")
    assert (result.status, result.out) == (2, "")
    assert "--tokenizer" in result.err
    wrong = run("detect", "--key", own_key, "--tokenizer", "none.json", stdin="Word.")
    assert (wrong.status, "there is no tokenizer none.json" in wrong.err) == (2, True)
    assert "moved" not in wrong.err
    moved = ["--tokenizer", own_tokenizer.with_name("moved.json")]
    assert run("detect", "--key", own_key, *moved, stdin="Word.").status == 3


@pytest.mark.parametrize("order", [1, -1])
def test_a_text_is_recognised_by_any_of_several_keys(
    run, key, key_file, other_key_file, marked, plain, order
):
    files = [key_file, other_key_file][::order]
    keys = [option for path in files for option in ("--key", path)]
    alone = run("detect", "--key", key_file, "--json", stdin=marked).json
    result = run("detect", *keys, "--json", stdin=marked)
    more = {"keys_tried": 2, "p_value": 2 * alone["p_value"]}
    more["pairs_needed"] = result.json["pairs_needed"]
    assert more["pairs_needed"] > alone["pairs_needed"]
    assert (result.status, result.json) == (0, {**alone, **more})
    assert f"key {key.id} (best of 2)" in run("detect", *keys, stdin=marked).out
    assert run("detect", *keys, stdin=plain).status == 1


def test_the_environment_may_name_several_keys(run, key_file, other_key_file, marked, monkeypatch):
    monkeypatch.setenv("DLLMARK_KEY", f"{other_key_file}{os.pathsep}{key_file}")
    assert run("detect", "--json", stdin=marked).json["keys_tried"] == 2


def test_details_are_those_of_the_key_that_fits(run, key_file, other_key_file, marked):
    options = ["--json", "--explain", "--spans", "--key", key_file]
    alone = run("detect", *options, stdin=marked).json
    several = run("detect", *options, "--key", other_key_file, stdin=marked).json
    assert several["tokens"] == alone["tokens"]
    [span], [corrected] = alone["spans"], several["spans"]
    assert corrected == {**span, "p_value": 2 * span["p_value"]}


def test_a_statement_says_the_finding_in_words_and_what_was_examined(
    run, key, key_file, marked, plain
):
    cases = {
        marked: (0, "Finding: the text is consistent with the watermark"),
        plain: (1, "Finding: no watermark"),
        "Word.": (3, "Finding: the text is too short to tell."),
    }
    for text, (status, finding) in cases.items():
        result = run("detect", "--key", key_file, "--statement", stdin=text)
        assert (result.status, result.err) == (status, "")
        assert result.out.startswith(finding)
        assert "\nWhat this does not prove: " in result.out
        assert hashlib.sha256(text.encode()).hexdigest() in result.out
        assert key.secret.reveal().hex() not in result.out
        as_json = run("detect", "--key", key_file, "--statement", "--json", stdin=text).json
        assert as_json["statement"] + "\n" == result.out


def test_statements_of_lines_name_their_lines(run, key_file, marked, plain):
    lines = f"{json.dumps(marked)}\n{json.dumps(plain)}\n"
    out = run("detect", "--jsonl", "--statement", "--key", key_file, stdin=lines).out
    first, second = out.strip().split("\n\n")
    assert "Text: standard input:1, " in first and "Text: standard input:2, " in second


def test_the_statement_of_a_ring_names_the_label_and_counts_its_keys(
    run, key_file, tokenizer, tmp_path, plain
):
    run("keys", "import", tmp_path / "ring", key_file, "--label", "master")
    run("keys", "derive", tmp_path / "ring", "customer-17")
    master, customer = dllmark.KeyRing(tmp_path / "ring").all_keys()
    text = marked_text(customer, tokenizer)
    said = run("detect", "--keyring", tmp_path / "ring", "--statement", stdin=text).out
    assert f"the watermark of key {customer.id}, customer-17." in said
    assert "best of 2 keys" in said and master.id not in said
    said = run("detect", "--keyring", tmp_path / "ring", "--statement", stdin=plain).out
    assert "no watermark of the 2 keys that were tried was detected" in said


def test_the_statement_of_a_payload_names_it(run, key, key_file, tokenizer):
    text = marked_text(dllmark.Payloads(8).key(key, 77), tokenizer)
    options = ["--payload", "--payload-bits", 8, "--statement"]
    said = run("detect", "--key", key_file, *options, stdin=text).out
    assert "Payload: 77." in said and "best of 256 payloads" in said
