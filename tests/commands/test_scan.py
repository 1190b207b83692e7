"""The command: what it prints, how it exits, and what it says is missing."""

import importlib.util
import json
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow", reason="pip install 'dllmark[scan]'")

from corpora import lines, rows

from dllmark.relation.key import Secret, WatermarkKey


@pytest.fixture
def scan(run, key_file, tmp_path, scan_environment):
    """Run `dllmark scan` into a folder."""

    def scan(*arguments, key=key_file, to="out"):
        return run("scan", *arguments, "--key", key, "-o", tmp_path / to, "--workers", 1)

    return scan


def test_a_hit_exits_0_and_no_hit_1(scan, corpus, tmp_path, texts):
    result = scan(corpus)
    assert (result.status, result.err) == (0, "")
    assert "- watermarked: 8, listed in hits.csv\n- the evidence of those: 8 over" in result.out
    (tmp_path / "plain.jsonl").write_bytes(lines(texts[1:5]))
    result = scan(tmp_path / "plain.jsonl", to="plain")
    assert (result.status, result.err) == (1, "")
    assert "- watermarked: 0" in result.out


def test_the_environment_may_name_the_key(run, key_file, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("DLLMARK_KEY", str(key_file))
    assert run("scan", corpus, "-o", tmp_path / "out", "--workers", 1).status == 0


def test_the_summary_as_json_is_the_one_in_the_folder(scan, corpus, tmp_path):
    result = scan(corpus, "--json")
    assert result.json == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (result.json["watermarked"], result.json["fdr"]) == (8, 0.01)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "errors.jsonl", "hits.csv", "manifest.json", "p_values.png", "rows", "summary.json",
        "summary.md",
    ]  # fmt: skip


def test_several_keys_say_which_one_fits(scan, corpus, tmp_path, key, tokenizer):
    other = WatermarkKey(Secret(b"another key, yes"), 0.25, tokenizer.id)
    other.save(tmp_path / "other.key")
    result = scan(corpus, "--key", tmp_path / "other.key", "--json")
    assert result.json["watermarked_by_key"] == {key.id: 8}
    assert {row["key_id"] for row in rows(tmp_path / "out") if row["p_value"] < 1e-4} == {key.id}


def test_hits_are_printed_if_asked_for(scan, corpus, key):
    shown = scan(corpus, "--hits").out.splitlines()[-8:]
    assert shown[0].startswith("p ")
    assert shown[0].endswith(f"  {corpus}/a.jsonl:1  id d0  key {key.id}")
    assert shown[-1].endswith(f"  {corpus}/d.txt:1  key {key.id}")
    hits = scan(corpus, "--hits", "--json").json["hits"]
    assert [hit["row"] for hit in hits] == ["1", "6", "11", "16", "1", "6", "1", "1"]


def test_a_false_positive_rate_may_be_asked_for_instead(scan, corpus):
    result = scan(corpus, "--fpr", 1e-6, "--json")
    assert (result.json["watermarked"], result.json["fpr"], "fdr" in result.json) == (
        8,
        1e-6,
        False,
    )
    both = scan(corpus, "--fpr", 1e-6, "--fdr", 0.05)
    assert (both.status, "give --fdr or --fpr" in both.err) == (2, True)


def test_columns_and_tokenizer_may_be_named(scan, tmp_path, texts, tokenizer, key):
    (tmp_path / "moved.json").write_text(tokenizer.definition())
    (tmp_path / "a.jsonl").write_bytes(lines([{"content": texts[0], "url": "u"}]))
    options = ["--text-column", "content", "--id-column", "url"]
    result = scan(tmp_path / "a.jsonl", *options, "--tokenizer", tmp_path / "moved.json")
    assert result.status == 0, result.err
    assert [row["id"] for row in rows(tmp_path / "out")] == ["u"]


def test_errors_exit_2_and_say_what_to_do(scan, corpus, tmp_path):
    assert "there is no file" in scan(tmp_path / "missing").err
    result = scan(corpus, "--strict", to="strict")
    assert result.status == 2
    assert "a.jsonl:21: not a line of JSON (without --strict" in result.err
    result = scan(corpus, "--ray-address", "x", to="ray")
    assert (result.status, "--engine ray" in result.err) == (2, True)
    result = scan(corpus / "e.bin", to="binary")
    assert result.status == 2
    assert "no document could be read: see" in result.err


@pytest.mark.parametrize("name", ["fsspec", "pyarrow", "matplotlib"])
def test_a_missing_package_is_named_with_how_to_get_it(scan, corpus, monkeypatch, name):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda one: None if one == name else found(one)
    )
    result = scan(corpus)
    assert (result.status, result.out) == (2, "")
    assert f"scanning needs {name}: pip install 'dllmark[scan]'" in result.err


def test_missing_ray_is_named_with_how_to_get_it(scan, corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = scan(corpus, "--engine", "ray")
    assert result.status == 2
    assert "pip install 'dllmark[ray]'" in result.err


def test_an_interrupt_is_no_verdict_and_the_scan_continues(scan, corpus, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dllmark.scan.run.scan_here", interrupted)
        result = scan(corpus)
    assert (result.status, "the same command continues" in result.err) == (2, True)
    assert scan(corpus).status == 0


def test_starting_the_command_line_loads_nothing_heavy():
    heavy = "{'numpy', 'pyarrow', 'fsspec', 'ray'}"
    code = f"import sys, dllmark.commands.cli; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
