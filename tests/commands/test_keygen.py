"""`keygen`: a private file, and what to do with it."""

import stat

import pytest

from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import EMBEDDED


def test_keygen_writes_a_key_and_says_what_to_do_with_it(run, tmp_path):
    path = tmp_path / "new.key"
    result = run("keygen", "-o", path, "--gamma", "0.3", "--note", "for tests")
    key = WatermarkKey.load(path)
    assert (result.status, key.gamma, key.note, key.tokenizer.name) == (
        0, 0.3, "for tests", "embedded",
    )  # fmt: skip
    assert result.out.startswith(f"wrote {path}: key {key.id}, gamma 0.3, tokenizer embedded\nKeep")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key.secret.reveal().hex() not in result.out + result.err


def test_keygen_reports_json_without_the_secret(run, tmp_path):
    record = run("keygen", "-o", tmp_path / "k", "--model", EMBEDDED, "--json").json
    key = WatermarkKey.load(tmp_path / "k")
    assert record == {"path": str(tmp_path / "k"), **key.identity.to_dict()}
    assert key.tokenizer.name == str(EMBEDDED)


REFUSED = {
    "an existing file": (["-o", "my.key"], "choose another name"),
    "a missing folder": (["-o", "missing/k"], "cannot write the key to missing/k: No such file"),
    "gamma": (["-o", "k", "--gamma", "1"], "lies in (0, 1); got 1.0"),
    "a model": (["-o", "k", "--model", "missing.json"], "there is no tokenizer missing.json"),
    "a model's long name": (["-o", "k", "--model", "x" * 300], "there is no tokenizer x"),
}


@pytest.mark.parametrize(("arguments", "reason"), REFUSED.values(), ids=REFUSED)
def test_keygen_refuses_in_one_line(run, key_file, monkeypatch, arguments, reason):
    monkeypatch.chdir(key_file.parent)
    before = key_file.read_bytes()
    result = run("keygen", *arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert reason in result.err
    assert [path.read_bytes() for path in key_file.parent.iterdir()] == [before]


def test_names_are_printed_as_they_are(run, tmp_path):
    path = tmp_path / ":key: [bold]x"
    assert run("keygen", "-o", path).out.startswith(f"wrote {path}:")
