"""Keys under a passphrase: what opens them, what does not, and what a hostile file cannot do."""

import hashlib
import json
import os
import stat
import sys

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from key_files import SECRET, reveals_secret, sealed, traceback_of

from dllmark.errors import KeyFileError, MissingPackageError
from dllmark.files import only_writer_in
from dllmark.relation import sealed as sealing
from dllmark.relation.key import Secret, TokenizerId, WatermarkKey
from dllmark.relation.keyring import KeyRing

KEY = WatermarkKey(Secret(SECRET), 0.5, TokenizerId("some", "sha256:some"), "today", "a remark")
PASSPHRASE = Secret(b"correct horse")


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Let scrypt cost nothing."""
    monkeypatch.setattr(sealing, "COST", {"n": 16, "r": 8, "p": 1})


@pytest.fixture
def locked(tmp_path):
    """The file of `KEY`, locked."""
    KEY.save(tmp_path / "locked.key", PASSPHRASE)
    return tmp_path / "locked.key"


def rewrite(path, **changes):
    path.write_bytes(sealed(json.loads(path.read_bytes()) | changes))


def unlock(_name):
    return PASSPHRASE


def test_a_locked_key_is_the_same_key(locked):
    assert WatermarkKey.load(locked, unlock) == KEY
    assert stat.S_IMODE(locked.stat().st_mode) == 0o600
    derived = KEY.derive("customer-17")
    derived.save(locked.with_name("sub.key"), PASSPHRASE)
    assert WatermarkKey.load(locked.with_name("sub.key"), unlock) == derived


def test_the_file_shows_the_public_facts_and_no_secret(locked):
    assert not reveals_secret(locked.read_bytes())
    record = json.loads(locked.read_bytes())
    assert (record["id"], record["gamma"], record["note"]) == (KEY.id, 0.5, "a remark")


def test_anyone_with_the_passphrase_can_open_it_by_the_documented_steps(locked):
    """With hashlib's scrypt, and the fields as the page on key files describes them."""
    record = json.loads(locked.read_bytes())
    del record["checksum"]
    box = record.pop("sealed")
    key = hashlib.scrypt(
        b"correct horse", salt=bytes.fromhex(box["salt"]), n=box["n"], r=box["r"], p=box["p"],
        dklen=32,
    )  # fmt: skip
    facts = json.dumps(record, sort_keys=True).encode()
    opened = ChaCha20Poly1305(key).decrypt(
        bytes.fromhex(box["nonce"]), bytes.fromhex(box["box"]), facts
    )
    assert opened == SECRET


def test_two_files_of_one_key_share_nothing_secret(locked):
    KEY.save(locked.with_name("again.key"), PASSPHRASE)
    boxes = [json.loads(path.read_bytes())["sealed"] for path in locked.parent.iterdir()]
    assert all(boxes[0][name] != boxes[1][name] for name in ("salt", "nonce", "box"))


def test_a_wrong_passphrase_and_a_damaged_file_are_different_errors(locked):
    with pytest.raises(KeyFileError, match=r"the passphrase does not open .*locked.key: try again"):
        WatermarkKey.load(locked, lambda _: Secret(b"wrong horse"))
    locked.write_bytes(locked.read_bytes().replace(b"a remark", b"a change"))
    with pytest.raises(KeyFileError, match="cut short or was changed"):
        WatermarkKey.load(locked, unlock)


def test_public_facts_cannot_be_changed_unnoticed(locked):
    rewrite(locked, gamma=0.25)  # with the checksum that belongs to it
    with pytest.raises(KeyFileError, match="the file was changed on purpose"):
        WatermarkKey.load(locked, unlock)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 1 << 30}, {"n": 1 << 19, "r": 8}, {"r": 1 << 40}, {"p": 5}, {"p": 0}, {"n": 17},
        {"n": 1}, {"n": True}, {"n": 2.0}, {"n": "16"}, {"n": -16}, {"salt": 7}, {"nonce": "00"},
        {"nonce": "x"}, {"box": "00" * 1000}, {"cipher": "rot13"}, {"box": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_hostile_file_takes_no_memory_and_is_a_clear_error(locked, changes):
    box = json.loads(locked.read_bytes())["sealed"]
    rewrite(locked, sealed=box | changes)
    with pytest.raises(KeyFileError, match="cut short or was changed"):
        WatermarkKey.load(locked, unlock)


@pytest.mark.parametrize("content", [None, [], "x", {}])
def test_a_file_without_a_sealed_secret_is_damaged(locked, content):
    rewrite(locked, sealed=content)
    with pytest.raises(KeyFileError, match="cut short or was changed"):
        WatermarkKey.load(locked, unlock)


def test_what_is_written_can_be_opened_again():
    """The real costs, which the tests above do without."""
    assert sealing._affordable(1 << 17, 8, 1)


def test_without_a_passphrase_it_says_where_to_put_one(locked, monkeypatch):
    monkeypatch.delenv("DLLMARK_PASSPHRASE", raising=False)
    with pytest.raises(KeyFileError, match=r"locked with a passphrase: put it in DLLMARK_PASS"):
        WatermarkKey.load(locked)
    monkeypatch.setenv("DLLMARK_PASSPHRASE", "correct horse")
    assert WatermarkKey.load(locked) == KEY


def test_without_cryptography_it_says_what_to_install(locked, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for use in (
        lambda: WatermarkKey.load(locked, unlock),
        lambda: KEY.save("x", PASSPHRASE),
    ):
        with pytest.raises(MissingPackageError, match=r"pip install 'dllmark\[keys\]'") as caught:
            use()
        assert not reveals_secret(traceback_of(caught.value))


def test_errors_show_neither_secret_nor_passphrase(locked):
    for passphrase, changes in ((b"wrong horse", {}), (b"correct horse", {"sealed": {}})):
        rewrite(locked, **changes)
        with pytest.raises(KeyFileError) as caught:
            WatermarkKey.load(locked, lambda _, own=passphrase: Secret(own))
        shown = traceback_of(caught.value)
        assert not reveals_secret(shown)
        assert "horse" not in shown


def test_nobody_waits_for_a_ring_while_a_passphrase_is_typed(tmp_path):
    folder = tmp_path / "ring"
    KeyRing.create(folder).add(KEY, "blog", passphrase=PASSPHRASE)

    def type_slowly(_name):
        with only_writer_in(folder):  # which would raise if another had the lock
            return PASSPHRASE

    KeyRing(folder, unlock=type_slowly).derive("sub")
    assert [key.label for key in KeyRing(folder).record.keys] == ["blog", "sub"]


def test_a_ring_of_locked_keys_asks_for_each_file_once(tmp_path):
    asked = []

    def ask(name):
        asked.append(os.path.basename(name))
        return PASSPHRASE

    ring = KeyRing.create(tmp_path / "ring", unlock=ask)
    ring.add(KEY, "blog", passphrase=PASSPHRASE)
    ring.derive("customer-17")
    ring.derive("customer-18")
    assert ring.all_keys() == (KEY, KEY.derive("customer-17"), KEY.derive("customer-18"))
    assert asked == [f"{KEY.id}.key"]
    ring = KeyRing(tmp_path / "ring", unlock=ask)
    ring.retire("blog")
    assert [key.label for key in ring.record.keys] == ["blog", "customer-17", "customer-18"]
    assert asked == [f"{KEY.id}.key"]  # public facts need no secret
