"""`dllmark keys`: make, show and change the keys of a ring."""

import json

import pytest

from dllmark.relation.key import WatermarkKey
from dllmark.relation.keyring import KeyRing
from dllmark.relation.rotation import TEXTS_PER_KEY


@pytest.fixture
def ring(tmp_path, run):
    """A ring with one key, `blog`."""
    assert run("keys", "new", tmp_path / "ring", "blog").status == 0
    return tmp_path / "ring"


def test_new_makes_the_ring_and_says_what_to_keep(run, tmp_path):
    result = run("keys", "new", tmp_path / "ring", "blog", "--gamma", "0.3", "--note", "mine")
    [key] = KeyRing(tmp_path / "ring").all_keys()
    assert (result.status, key.gamma, key.note) == (0, 0.3, "mine")
    of = f"key {key.id}, gamma 0.3, tokenizer embedded; current"
    assert result.out.startswith(f"made blog in {tmp_path / 'ring'}: {of}\nKeep a copy")
    assert key.secret.reveal().hex() not in result.out + result.err


def test_list_shows_which_key_marks_and_which_only_recognise(run, ring):
    run("keys", "derive", ring, "customer-17/2026-11")
    run("keys", "derive", ring, "customer-17/2099-12", "--from", "2099-12-01")
    run("keys", "retire", ring, "blog")
    shown = run("keys", "list", ring)
    head, *lines = [line.split("  ") for line in shown.out.splitlines()]
    assert [field.strip() for field in head if field] == [
        "label", "key", "state", "since", "texts", "gamma", "tokenizer",
    ]  # fmt: skip
    fields = [[field.strip() for field in line if field.strip()] for line in lines]
    assert [(row[0], row[2]) for row in fields] == [
        ("blog", "retired"), ("customer-17/2026-11", "current"), ("customer-17/2099-12", "later"),
    ]  # fmt: skip
    assert fields[2][3] == "2099-12-01 00:00 UTC"
    listed = run("keys", "list", ring, "--json").json
    assert [key["state"] for key in listed["keys"]] == ["retired", "current", "later"]
    assert [key["id"] for key in listed["keys"]] == [row[1] for row in fields]


def test_a_derived_key_can_have_a_file_of_its_own(run, ring, tmp_path):
    result = run("keys", "derive", ring, "sub", "--output", tmp_path / "sub.key", "--json")
    key = WatermarkKey.load(tmp_path / "sub.key")
    assert (key.id, key.label) == (result.json["id"], "sub")
    assert key == KeyRing(ring).all_keys()[1]


def test_several_labels_are_derived_at_once_or_none(run, ring, tmp_path):
    result = run("keys", "derive", ring, "a", "b", "c", "--json")
    assert [record["label"] for record in result.records] == ["a", "b", "c"]
    assert run("keys", "derive", ring, "d", "a").status == 2
    assert [key.label for key in KeyRing(ring).record.keys] == ["blog", "a", "b", "c"]
    result = run("keys", "derive", ring, "e", "f", "-o", tmp_path / "one.key")
    assert (result.status, "holds one key" in result.err) == (2, True)


def test_a_key_is_retired_and_restored(run, ring):
    assert run("keys", "retire", ring, "blog", "--json").json["state"] == "retired"
    assert run("keys", "restore", ring, "blog", "--json").json["state"] == "current"
    retired = run("keys", "retire", ring, KeyRing(ring).record.keys[0].id)
    assert retired.out.startswith(f"retired blog in {ring}: ")
    assert retired.out.endswith("; retired\n")


def test_a_key_file_is_imported_under_its_label(run, ring, key_file, key, tmp_path):
    assert run("keys", "import", ring, key_file, "--label", "old").status == 0
    key.derive("customer-3").save(tmp_path / "sub.key")
    assert run("keys", "import", ring, tmp_path / "sub.key", "--json").json["label"] == "customer-3"
    assert KeyRing(ring).all_keys()[1:] == (key, key.derive("customer-3"))


def test_import_makes_a_ring_where_there_is_none(run, tmp_path, key_file, key):
    run("keys", "import", tmp_path / "new", key_file, "--label", "old", "--from", "2026-01-01")
    ring = KeyRing(tmp_path / "new")
    assert (ring.current(), ring.record.keys[0].begins.year) == (key, 2026)


def test_export_writes_public_facts_and_no_secret(run, ring, tmp_path, key_file, key):
    run("keys", "import", ring, key_file, "--label", "old")
    run("keys", "derive", ring, "sub", "--master", "old")
    printed = run("keys", "export", ring)
    run("keys", "export", ring, "--output", tmp_path / "facts.json")
    assert (tmp_path / "facts.json").read_text() == printed.out
    facts = json.loads(printed.out)["keys"]
    assert [each["label"] for each in facts] == ["blog", "old", "sub"]
    assert facts[2]["master"] == facts[1]["id"] == key.id
    assert facts[2]["tokenizer"] == facts[1]["tokenizer"] == vars(key.tokenizer)
    for each in KeyRing(ring).all_keys():
        assert each.secret.reveal().hex() not in printed.out


REFUSED = {
    "a label that is used": (["new", "ring", "blog"], "the label 'blog' is used already"),
    "a label that is no line": (["new", "ring", "a\nb"], "one line of printable characters"),
    "gamma": (["new", "ring", "x", "--gamma", "1"], "lies in (0, 1); got 1.0"),
    "a date": (["derive", "ring", "x", "--from", "soon"], "a date is written 2026-12-01"),
    "a key that is not there": (["retire", "ring", "blag"], "the ring has no key 'blag'"),
    "a master that is not there": (["derive", "ring", "x", "--master", "y"], "has no key 'y'"),
    "a key that marks already": (["restore", "ring", "blog"], "'blog' is not retired"),
    "a key without a label": (["import", "ring", "my.key"], "give one with --label"),
    "a key file that is not there": (["import", "ring", "no.key"], "there is no key file no.key"),
    "a folder that is no ring": (["list", "."], "there is no key ring in ."),
    "a file that is there": (["derive", "ring", "x", "-o", "my.key"], "choose another name"),
    "an export that cannot be written": (
        ["export", "ring", "-o", "missing/facts"],
        "cannot write to missing/facts",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), REFUSED.values(), ids=REFUSED)
def test_it_refuses_in_one_line(run, ring, key_file, monkeypatch, arguments, reason):
    monkeypatch.chdir(ring.parent)
    before = {path: path.read_bytes() for path in ring.iterdir()}
    result = run("keys", *arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert reason in result.err
    assert {path: path.read_bytes() for path in ring.iterdir()} == before


def test_the_same_key_twice_is_refused(run, ring, key_file):
    run("keys", "import", ring, key_file, "--label", "old")
    result = run("keys", "import", ring, key_file, "--label", "again")
    assert (result.status, "is in the ring already, as 'old'" in result.err) == (2, True)


def test_a_folder_that_others_can_read_is_refused(run, ring):
    ring.chmod(0o755)
    result = run("keys", "list", ring)
    assert (result.status, f"run `chmod 700 {ring}`" in result.err) == (2, True)


def test_list_warns_of_keys_that_have_marked_too_many_texts(run, ring):
    assert run("keys", "list", ring).err == ""
    opened = KeyRing(ring)
    opened.count(opened.current(), 1000 + TEXTS_PER_KEY)
    for entry in opened.derive_all([f"customer-{number}" for number in range(7)]):
        opened.count(opened.key(entry), TEXTS_PER_KEY + 1)
    result = run("keys", "list", ring)
    assert (result.status, result.err.count("\n")) == (0, 1)
    assert f"have marked more than the {TEXTS_PER_KEY} texts" in result.err
    assert f": blog ({1000 + TEXTS_PER_KEY:,}), customer-0 ({TEXTS_PER_KEY + 1}), " in result.err
    assert "customer-3 (11) and 3 more. Give every customer" in result.err
    listed = run("keys", "list", ring, "--json").json
    assert listed["texts_per_key"] == TEXTS_PER_KEY
    assert [key["texts"] for key in listed["keys"]] == [1010, *[11] * 7]


def test_a_ring_can_be_told_when_to_rotate(run, ring):
    assert run("keys", "policy", ring, "--rotate-after", 500).out.endswith("after 500 texts\n")
    assert run("keys", "list", ring, "--json").json["rotate_after"] == 500
    result = run("keys", "policy", ring, "--rotate-after", 0, "--json")
    assert result.json == {"ring": str(ring), "rotate_after": None}
    assert "never" in run("keys", "policy", ring, "--rotate-after", 0).out
    assert KeyRing(ring).record.rotate_after is None
