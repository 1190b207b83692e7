"""Keys: what their files hold, which files are refused, and that the secret never shows."""

import hashlib
import json
import logging
import os
import pickle
import stat
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_files import SECRET, reveals_secret, sealed, traceback_of
from rich.pretty import pretty_repr

from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError, InputError, KeyFileError, MismatchError
from dllmark.relation.key import Secret, TokenizerId, WatermarkKey
from dllmark.relation.keyring import KeyRing
from dllmark.relation.prf import siphash

KEY = WatermarkKey(Secret(SECRET), 0.5, TokenizerId("some", "sha256:some"), "today", "a remark")
RECORD = {
    "format": "dllmark-key-1", "scheme": "dllmark-1", "id": KEY.id, "secret": SECRET.hex(),
    "gamma": 0.5, "tokenizer": {"name": "some", "fingerprint": "sha256:some"},
    "created": "today", "note": "a remark",
}  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    """The file of `KEY`."""
    KEY.save(tmp_path / "my.key")
    return tmp_path / "my.key"


def rewrite(path, content):
    path.write_bytes(content)
    path.chmod(0o600)


def test_a_new_key_has_128_secret_bits_of_its_own():
    one, other = (WatermarkKey.generate(KEY.tokenizer) for _ in range(2))
    assert len(one.secret.reveal()) == 16
    assert one.secret != other.secret
    assert one.id != other.id
    assert datetime.now(timezone.utc) - datetime.fromisoformat(one.created) < timedelta(hours=1)


def test_the_id_names_the_secret_and_is_no_plain_hash_of_it(key):
    assert key.id == "7a7ac9f388b44c66"
    assert not hashlib.sha256(key.secret.reveal()).hexdigest().startswith(key.id)
    assert replace(key, gamma=0.25, note="other").id == key.id


def test_a_key_file_holds_all_that_detection_needs(saved):
    record = json.loads(saved.read_bytes())
    assert sealed(record) == json.dumps(record).encode()
    assert record.pop("checksum")
    assert record == RECORD


@given(
    secret=st.binary(min_size=16, max_size=16),
    gamma=st.floats(2**-64, 1, exclude_max=True),
    name=st.text(),
    note=st.text(),
)
def test_a_key_survives_its_file_exactly(tmp_path_factory, secret, gamma, name, note):
    path = tmp_path_factory.mktemp("round") / "key"
    key = WatermarkKey(Secret(secret), gamma, TokenizerId(name, "sha256:some"), "today", note)
    key.save(path)
    assert WatermarkKey.load(path) == key


def test_only_the_owner_can_read_a_key_file(saved):
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(saved):
    with pytest.raises(KeyFileError, match=r"never overwritten: choose another name"):
        WatermarkKey.generate(KEY.tokenizer).save(saved)
    assert WatermarkKey.load(saved) == KEY


def test_a_key_that_cannot_be_written_is_a_clear_error(tmp_path):
    with pytest.raises(KeyFileError, match=r"cannot write the key to .*: No such file"):
        KEY.save(tmp_path / "missing" / "my.key")


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyFileError, match="No space left"):
        KEY.save(tmp_path / "my.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gamma", [0, 1, -0.5, 1.5, 1e-30, float("nan"), float("inf")])
def test_gamma_must_leave_both_colours_a_chance(gamma):
    with pytest.raises(DllmarkError, match=r"lies in \(0, 1\)"):
        WatermarkKey.generate(KEY.tokenizer, gamma=gamma)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_secret_of_another_length_is_refused(length):
    with pytest.raises(KeyFileError, match="16 bytes; make one with `dllmark keygen`"):
        WatermarkKey(Secret(bytes(length)), 0.5, KEY.tokenizer)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_file_that_others_can_read_is_refused(saved, mode):
    saved.chmod(mode)
    with pytest.raises(KeyFileError, match=f"run `chmod 600 {saved}`, and make a new key if"):
        WatermarkKey.load(saved)


def test_a_missing_key_file_says_how_to_make_one(tmp_path):
    with pytest.raises(KeyFileError, match=r"there is no key file .* `dllmark keygen`"):
        WatermarkKey.load(tmp_path / "my.key")


@pytest.mark.parametrize("read", [WatermarkKey.load, KeyRing])
@pytest.mark.parametrize("given", ["content", "secret"])
def test_a_secret_given_in_place_of_a_path_is_not_shown(saved, given, read):
    content = saved.read_text()
    secret = json.loads(content)["secret"]
    with pytest.raises(KeyFileError, match="looks like the secret itself") as caught:
        read(content if given == "content" else secret)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_a_name_that_cannot_be_a_key_file_is_a_clear_error(tmp_path, name):
    with pytest.raises(KeyFileError, match="cannot read the key file"):
        WatermarkKey.load(tmp_path / name)


WHOLE = sealed(RECORD)
DAMAGED = {
    "empty": b"",
    "truncated": WHOLE[:-20],
    "not UTF-8": b"\xff" + WHOLE,
    "not JSON": SECRET.hex().encode(),
    "nested too deeply": WHOLE[:-1] + b', "more": ' + b"[" * 99_999,
    "a list": b"[" + WHOLE + b"]",
    "format is no string": sealed(RECORD | {"format": 1}),
    "secret is no hex": sealed(RECORD | {"secret": f"{SECRET.hex()[:-1]}x"}),
    "secret is cut": sealed(RECORD | {"secret": SECRET.hex()[:-2]}),
    "secret is no string": sealed(RECORD | {"secret": [SECRET.hex()]}),
    "gamma is out of range": sealed(RECORD | {"gamma": 1.5}),
    "gamma is no number": sealed(RECORD | {"gamma": "half"}),
    "gamma is beyond floats": sealed(RECORD | {"gamma": 10**400}),
    "tokenizer is no object": sealed(RECORD | {"tokenizer": "some"}),
    "a label without a master": sealed(RECORD | {"label": "a"}),
    "a master without a label": sealed(RECORD | {"master": "00"}),
    "a field more": json.dumps(json.loads(WHOLE) | {"more": 1}).encode(),
    **{f"{field} was changed": json.dumps(json.loads(WHOLE) | {field: value}).encode()
       for field, value in [("id", "00"), ("secret", f"{SECRET.hex()[:-1]}0"), ("gamma", 0.25),
                            ("tokenizer", {"name": "x", "fingerprint": "y"}), ("checksum", "00")]},
    **{f"{missing} is missing": sealed({name: RECORD[name] for name in RECORD if name != missing})
       for missing in ("format", "secret", "gamma", "tokenizer", "created", "note")},
}  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_key_file_says_what_to_do_and_not_what_it_holds(saved, content):
    rewrite(saved, content)
    with pytest.raises(KeyFileError, match="restore it from a backup or make a new key") as caught:
        WatermarkKey.load(saved)
    assert str(saved) in str(caught.value)
    assert not reveals_secret(traceback_of(caught.value))


def test_a_key_file_nested_to_any_depth_is_a_clear_error(saved):
    for depth in range(800, 1000):  # around what Python can just read, and just not write
        rewrite(saved, WHOLE[:-1] + b', "more": ' + b"[" * depth + b"]" * depth + b"}")
        with pytest.raises(KeyFileError, match="restore it from a backup"):
            WatermarkKey.load(saved)


@pytest.mark.parametrize("other", [{"format": "dllmark-key-2"}, {"scheme": "dllmark-2"}])
def test_a_key_file_of_another_version_says_so_and_not_what_it_holds(saved, other):
    rewrite(saved, sealed(RECORD | other))
    with pytest.raises(KeyFileError, match="Use the version of dllmark that wrote it") as caught:
        WatermarkKey.load(saved)
    assert not reveals_secret(traceback_of(caught.value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.builds(
        lambda before, after: before + SECRET.hex().encode() + after, st.binary(), st.binary()
    )
    | st.dictionaries(st.sampled_from([*RECORD, "other"]), JSON).map(
        lambda changes: sealed(RECORD | changes)
    )
)
def test_any_bytes_are_a_key_or_an_error_that_does_not_quote_them(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "key"
    rewrite(path, content)
    try:
        assert WatermarkKey.load(path).secret == KEY.secret
    except KeyFileError as error:
        assert not reveals_secret(str(error))


labels = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200).filter(
    lambda label: label.isprintable() and label == label.strip()
)


@pytest.mark.parametrize("label", ["customer-17/2026-11", "a", "Zoë Müller", "日本", "x" * 200])
def test_a_derived_secret_is_a_hash_of_the_label_keyed_with_the_secret(label):
    """The formula as the documentation gives it, in terms of BLAKE2b alone."""
    hashed = hashlib.blake2b(digest_size=16, key=SECRET, person=b"dllmark derive 1")
    hashed.update(label.encode("utf-8"))
    derived = KEY.derive(label)
    assert derived.secret.reveal() == hashed.digest()
    assert (derived.label, derived.master) == (label, KEY.id)
    assert (derived.gamma, derived.tokenizer) == (KEY.gamma, KEY.tokenizer)
    assert derived == KEY.derive(label)


@given(secret=st.binary(min_size=16, max_size=16), labels=st.lists(labels, max_size=8))
def test_every_label_gives_a_key_of_its_own(secret, labels):
    key = replace(KEY, secret=Secret(secret))
    derived = {one.label: one.id for one in map(key.derive, labels)}
    assert len({key.id, *derived.values()}) == 1 + len(derived)


def test_the_same_label_of_another_master_or_one_level_down_is_another_key():
    other = replace(KEY, secret=Secret(SECRET[::-1]))
    ids = {KEY.derive("a").id, other.derive("a").id, KEY.derive("a").derive("a").id}
    assert len(ids) == 3
    assert KEY.derive("a").derive("b").master == KEY.derive("a").id


def test_a_label_has_one_spelling():
    assert KEY.derive("Zoe\u0308") == KEY.derive("Zo\xeb")


@pytest.mark.parametrize(
    "label", ["", "x" * 201, " ", "a ", "two\nlines", "tab\t", "zero\u200bwidth", "\ud800", 7, None]
)
def test_a_label_that_nobody_can_read_is_refused(label):
    with pytest.raises(InputError, match=r"a label (is|has)"):
        KEY.derive(label)


def test_a_derived_key_survives_its_file(tmp_path):
    derived = KEY.derive("customer-17/2026-11")
    derived.save(tmp_path / "sub.key")
    record = json.loads((tmp_path / "sub.key").read_bytes())
    assert (record["label"], record["master"]) == ("customer-17/2026-11", KEY.id)
    assert WatermarkKey.load(tmp_path / "sub.key") == derived


def test_a_derived_key_shows_neither_secret():
    derived = KEY.derive("customer-17")
    for secret in (SECRET, derived.secret.reveal()):
        assert not reveals_secret(repr(derived), secret)


@pytest.mark.parametrize("field", ["scheme", "key_id", "gamma", "tokenizer"])
def test_a_text_marked_otherwise_does_not_match(field):
    claimed = KEY.identity.to_dict()
    KEY.identity.check_claim(claimed)
    with pytest.raises(MismatchError, match=f"{field} 'other'.*use the key the text was generated"):
        KEY.identity.check_claim({**claimed, field: "other"})
    del claimed[field]
    with pytest.raises(MismatchError, match=f"{field} None"):
        KEY.identity.check_claim(claimed)


def test_secrets_compare_by_value_and_only_with_secrets():
    assert Secret(SECRET) == Secret(SECRET) != Secret(SECRET[::-1])
    assert Secret(SECRET) != SECRET
    assert len({Secret(SECRET), Secret(SECRET), Secret(SECRET[::-1])}) == 2


@pytest.mark.parametrize("show", [repr, str, format, pretty_repr, asdict])
def test_a_key_does_not_print_its_secret(show):
    assert "<secret>" in str(show(KEY))
    assert not reveals_secret(str(show(KEY)))


def test_a_logged_key_does_not_show_its_secret(caplog):
    logging.getLogger("anyone").warning("using %s and %r", KEY, KEY.secret)
    assert "<secret>" in caplog.text
    assert not reveals_secret(caplog.text)


def test_results_do_not_carry_the_secret(small_key, small_tokenizer):
    secret = small_key.secret.reveal()
    detection = Detector(small_key, small_tokenizer).detect("w1 w2 w3")
    assert pickle.loads(pickle.dumps(detection)) == detection
    for shown in (pickle.dumps(detection), repr(detection), json.dumps(detection.to_dict())):
        assert not reveals_secret(shown, secret)


def test_the_traceback_of_a_failed_save_does_not_show_the_secret(saved):
    with pytest.raises(KeyFileError) as caught:
        KEY.save(saved)
    assert not reveals_secret(traceback_of(caught.value))


def test_the_traceback_of_a_failed_hash_does_not_show_the_secret():
    with pytest.raises(TypeError) as caught:
        siphash(KEY, np.array([0.5]))
    assert not reveals_secret(traceback_of(caught.value))
