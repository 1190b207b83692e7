"""Where commands take their keys from: files, rings, the environment; and passphrases."""

import getpass
import json
import os
import threading
import warnings

import pytest
from samples import marked_text
from serving import tiny_model

from dllmark.commands.key_options import open_ring
from dllmark.errors import KeyFileError
from dllmark.relation import sealed
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.relation.keyring import KeyRing


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Let scrypt cost nothing."""
    monkeypatch.setattr(sealed, "COST", {"n": 16, "r": 8, "p": 1})
    monkeypatch.delenv("DLLMARK_PASSPHRASE", raising=False)


@pytest.fixture
def no_terminal(monkeypatch):
    """Have no terminal to type on."""

    def getpass_without_terminal(_prompt):
        warnings.warn("Can not control echo on the terminal.", getpass.GetPassWarning, stacklevel=1)

    monkeypatch.setattr(getpass, "getpass", getpass_without_terminal)


@pytest.fixture
def type_in(monkeypatch):
    """Type these answers at the prompts, and return the prompts."""

    def type_in(*answers):
        prompts, rest = [], list(answers)

        def ask(prompt):
            prompts.append(prompt)
            return rest.pop(0)

        monkeypatch.setattr(getpass, "getpass", ask)
        return prompts

    return type_in


@pytest.fixture
def locked(key, tmp_path):
    """The file of the fixed key, locked."""
    key.save(tmp_path / "locked.key", Secret(b"correct horse"))
    return tmp_path / "locked.key"


@pytest.fixture
def ring(key, tmp_path):
    """A ring with the fixed key, a key derived from it, and another that is retired."""
    ring = KeyRing.create(tmp_path / "ring")
    ring.add(key, "blog")
    ring.derive("customer-17/2026-11")
    ring.derive("customer-18")
    ring.retire("customer-18")
    return tmp_path / "ring"


def test_detect_tries_every_key_of_a_ring_the_retired_ones_too(run, ring, key, tokenizer, plain):
    for label in ("customer-17/2026-11", "customer-18"):
        derived = key.derive(label)
        result = run("detect", "--keyring", ring, "--json", stdin=marked_text(derived, tokenizer))
        assert (result.status, result.json["key_id"]) == (0, derived.id)
        assert (result.json["keys_tried"], result.json["label"]) == (3, label)
    result = run("detect", "--keyring", ring, stdin=marked_text(derived, tokenizer))
    assert result.out.endswith(f"key {derived.id} (best of 3)  customer-18\n")
    result = run("detect", "--keyring", ring, "--json", stdin=plain)
    assert (result.status, result.json["label"]) == (1, None)


def test_scan_tries_every_key_of_a_ring(run, ring, key, corpus, tmp_path, scan_environment):
    result = run(
        "scan", corpus, "--keyring", ring, "-o", tmp_path / "out", "--workers", 1, "--json"
    )
    assert (result.status, result.json["watermarked"]) == (0, 8)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert len(manifest["settings"]["keys"]) == 3


REFUSED = {
    "both": (["--key", "my.key", "--keyring", "ring"], "give --key or --keyring, not both"),
    "a folder without a ring": (["--keyring", "."], "there is no key ring in ."),
    "neither": ([], "give a key with --key or --keyring, or in DLLMARK_KEY"),
}


@pytest.mark.parametrize("command", ["detect", "scan"])
@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=REFUSED)
def test_keys_come_from_one_place(run, ring, key_file, monkeypatch, command, options, reason):
    monkeypatch.chdir(ring.parent)
    more = ["my.key", "-o", "out"] if command == "scan" else []
    result = run(command, *more, *options, stdin="A text.")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert reason in result.err


def test_an_empty_ring_is_refused(run, tmp_path):
    KeyRing.create(tmp_path / "empty")
    result = run("detect", "--keyring", tmp_path / "empty", stdin="A text.")
    assert (result.status, "is empty: make a key" in result.err) == (2, True)


def test_the_environment_may_hold_the_key_itself(run, key_file, marked, monkeypatch, tmp_path):
    monkeypatch.setenv("DLLMARK_KEY", key_file.read_text())
    assert run("detect", stdin=marked).status == 0
    assert "DLLMARK_KEY" not in os.environ  # so that no child process gets it
    monkeypatch.setenv("DLLMARK_KEY", key_file.read_text())
    (tmp_path / "texts.jsonl").write_text('"A text."\n')
    result = run("calibrate", tmp_path / "texts.jsonl")
    assert "--key" not in result.err


def test_a_key_in_the_environment_is_never_quoted(run, key_file, key, marked, monkeypatch):
    for broken in (key_file.read_text()[:-9], key_file.read_text().replace("0.5", "0.7")):
        monkeypatch.setenv("DLLMARK_KEY", broken)
        monkeypatch.setenv("DLLMARK_TRACEBACK", "1")
        result = run("detect", stdin=marked)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith("error: the key in DLLMARK_KEY is cut short or was changed")
        assert key.secret.reveal().hex()[:8] not in result.err


@pytest.mark.parametrize("wrap", ["{}", " {}\n", "{}:other", "{}" * 200])
def test_a_bare_secret_in_the_environment_is_not_quoted(run, key, monkeypatch, wrap):
    secret = key.secret.reveal().hex()
    monkeypatch.setenv("DLLMARK_KEY", wrap.replace("{}", secret))
    result = run("detect", stdin="A text.")
    assert result.status == 2
    assert result.err.startswith("error: DLLMARK_KEY holds neither the content of a key file")
    assert secret not in result.out + result.err


def test_an_option_comes_before_the_environment(run, key_file, other_key_file, marked, monkeypatch):
    monkeypatch.setenv("DLLMARK_KEY", other_key_file.read_text())
    assert run("detect", "--key", key_file, stdin=marked).status == 0


def test_a_passphrase_is_asked_for_or_taken_from_the_environment(
    run, locked, marked, monkeypatch, type_in
):
    prompts = type_in("correct horse")
    assert run("detect", "--key", locked, stdin=marked).status == 0
    assert prompts == [f"Passphrase of {locked}: "]
    monkeypatch.setenv("DLLMARK_PASSPHRASE", "correct horse")
    assert run("detect", "--key", locked, stdin=marked).status == 0
    assert (len(prompts), "DLLMARK_PASSPHRASE" in os.environ) == (1, False)


def test_a_locked_key_may_stand_in_the_environment(run, locked, marked, monkeypatch, type_in):
    monkeypatch.setenv("DLLMARK_KEY", locked.read_text())
    prompts = type_in("correct horse")
    assert run("detect", stdin=marked).status == 0
    assert prompts == ["Passphrase of the key in DLLMARK_KEY: "]


def test_several_locked_keys_are_asked_for_once(run, locked, key, marked, type_in):
    key.derive("sub").save(locked.with_name("sub.key"), Secret(b"correct horse"))
    prompts = type_in("correct horse")
    options = ["--key", locked, "--key", locked.with_name("sub.key"), "--json"]
    assert run("detect", *options, stdin=marked).json["keys_tried"] == 2
    assert len(prompts) == 1


@pytest.mark.parametrize(
    ("typed", "reason"), [("wrong horse", "does not open"), ("", "the passphrase is empty")]
)
def test_a_wrong_passphrase_is_told_and_not_shown(run, locked, marked, type_in, typed, reason):
    type_in(typed)
    result = run("detect", "--key", locked, stdin=marked)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert reason in result.err
    assert "horse" not in result.err


@pytest.mark.usefixtures("no_terminal")
def test_where_nobody_can_type_it_says_where_to_put_the_passphrase(run, locked, tmp_path):
    for command in (["detect", "--key", locked], ["keygen", "-o", tmp_path / "k", "--passphrase"]):
        result = run(*command, stdin="A text.")
        assert result.status == 2
        assert "no terminal to ask for the passphrase: put it in DLLMARK_PASSPHRASE" in result.err
    assert not (tmp_path / "k").exists()


def test_keygen_locks_a_key_with_a_passphrase_typed_twice(run, tmp_path, type_in):
    prompts = type_in("correct horse", "correct horse")
    assert run("keygen", "-o", tmp_path / "new.key", "--passphrase").status == 0
    assert prompts == ["New passphrase: ", "The same again: "]
    assert WatermarkKey.load(tmp_path / "new.key", lambda _: Secret(b"correct horse"))
    type_in("correct horse", "correct house")
    result = run("keygen", "-o", tmp_path / "other.key", "--passphrase")
    assert (result.status, "the two passphrases differ" in result.err) == (2, True)
    assert not (tmp_path / "other.key").exists()


def test_a_ring_may_be_locked(run, tmp_path, monkeypatch, type_in, locked, key):
    monkeypatch.setenv("DLLMARK_PASSPHRASE", "correct horse")
    assert run("keys", "new", tmp_path / "ring", "blog", "--passphrase").status == 0
    prompts = type_in(*["correct horse"] * 9)
    assert run("keys", "derive", tmp_path / "ring", "sub").status == 0
    assert len(prompts) == 1
    assert run("keys", "list", tmp_path / "ring").status == 0
    assert run("keys", "retire", tmp_path / "ring", "sub").status == 0
    assert len(prompts) == 1  # what is public needs no secret
    assert run("keys", "import", tmp_path / "ring", locked, "--label", "old").status == 0
    for path in (tmp_path / "ring").glob("*.key"):
        assert b'"secret"' not in path.read_bytes()
    assert run("detect", "--keyring", tmp_path / "ring", "--json", stdin="Word.").status == 3


SHORT = ["--tokens", "8", "--steps", "2", "--block", "8"]


@pytest.fixture
def any_model(tokenizer, one_core, monkeypatch):
    """Random weights in place of the embedded ones: what is written is no matter here."""
    model = tiny_model(tokenizer)
    monkeypatch.setattr("dllmark.models.loading.load_model", lambda source: model)


@pytest.mark.usefixtures("any_model")
def test_generate_marks_with_the_current_key_of_a_ring(run, ring, key, tmp_path):
    written = run("generate", "A", "--keyring", ring, "--json", *SHORT).json
    assert written["watermark"]["key_id"] == key.derive("customer-17/2026-11").id
    labelled = run("generate", "A", "--keyring", ring, "--label", "blog", "--json", *SHORT).json
    assert labelled["watermark"]["key_id"] == key.id
    assert run("generate", "A", "--keyring", ring, "--no-watermark", *SHORT).status == 0
    assert KeyRing(ring).texts() == {key.derive("customer-17/2026-11").id: 1, key.id: 1}


@pytest.mark.usefixtures("any_model")
def test_generate_counts_what_it_writes_and_not_what_was_there(run, ring, key, tmp_path):
    KeyRing(ring).rotate_after(2)
    options = ["--keyring", ring, "--label", "blog", "-o", tmp_path / "out.jsonl", *SHORT]
    assert run("generate", "A", *options).status == 0
    assert run("generate", "A", *options).status == 0
    assert KeyRing(ring).texts() == {key.id: 1}
    assert run("generate", "A", "B", *options).status == 0
    assert KeyRing(ring).texts() == {key.id: 2}
    assert KeyRing(ring).current("blog") == key.derive("blog#2")
    result = run("generate", "A", "B", *options)  # the file was begun with the key before
    assert (result.status, "carries another mark than this run makes" in result.err) == (2, True)


@pytest.mark.usefixtures("any_model")
def test_texts_that_cannot_be_counted_are_written_and_told(run, ring):
    (ring / "texts.json").write_text("{")
    result = run("generate", "A", "--keyring", ring, "--json", *SHORT)
    assert (result.status, len(result.records)) == (0, 1)
    assert "texts that the key marks are not counted: " in result.err


def test_generate_never_writes_without_a_mark_for_want_of_a_key(run, ring, monkeypatch):
    monkeypatch.setattr("dllmark.models.loading.load_model", lambda source: pytest.fail("loaded"))
    cases = {
        "customer-18": "all are retired",
        "customer-19": "the ring has no key under 'customer-19'",
    }
    for label, reason in cases.items():
        result = run("generate", "A", "--keyring", ring, "--label", label, *SHORT)
        assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
        assert reason in result.err


def test_generate_takes_a_key_of_the_ring_for_the_model(run, ring, small_tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_text(small_tokenizer.definition())
    options = ["--keyring", ring, "--model", tmp_path / "tokenizer.json", *SHORT]
    result = run("generate", "A", *options)
    assert result.status == 2
    assert "the ring has no key for the tokenizer of this model: make one" in result.err


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_a_label_without_a_ring_is_refused(run, key_file, command):
    more = ["A", *SHORT] if command == "generate" else []
    result = run(command, *more, "--key", key_file, "--label", "blog")
    assert (result.status, result.out) == (2, "")
    assert "--label chooses keys of a ring: give it with --keyring" in result.err


def test_serve_takes_a_ring_or_the_key_in_the_environment(run, ring, key, key_file, monkeypatch):
    served = []
    monkeypatch.setattr("dllmark.commands.serve._run", lambda service, *_: served.append(service))
    assert run("serve", "--port", 0, "--keyring", ring, "--model", "none").status == 0
    monkeypatch.setenv("DLLMARK_KEY", key_file.read_text())
    assert run("serve", "--port", 0, "--model", "none").status == 0
    assert [len(service.keys) for service in served] == [3, 1]
    assert served[1].key == key
    for service in served:
        service.close()


def test_serve_refuses_a_label_where_it_marks_nothing(run, ring):
    result = run("serve", "--port", 0, "--keyring", ring, "--label", "blog", "--model", "none")
    assert (result.status, "nothing is marked here: leave it out" in result.err) == (2, True)


def test_a_running_server_asks_for_no_passphrase(ring, key, other_key_file, type_in):
    """It would wait for an answer with all requests waiting for it."""
    served, errors = open_ring(ring), []
    served.all_keys()
    other = WatermarkKey.load(other_key_file)
    KeyRing(ring).add(other, "locked", passphrase=Secret(b"correct horse"))
    prompts = type_in("correct horse")

    def answer():
        try:
            served.all_keys()
        except KeyFileError as error:
            errors.append(str(error))

    request = threading.Thread(target=answer)
    request.start()
    request.join()
    assert [error.endswith("was not given: start it again") for error in errors] == [True]
    assert prompts == []


def test_serve_refuses_an_empty_ring(run, tmp_path):
    KeyRing.create(tmp_path / "empty")
    result = run("serve", "--port", 0, "--keyring", tmp_path / "empty", "--model", "none")
    assert (result.status, "the ring is empty: make a key" in result.err) == (2, True)
