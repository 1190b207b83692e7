"""Key rings: a private folder, whose current key marks and whose keys all recognise."""

import json
import os
import stat
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from dllmark.errors import InputError, KeyFileError, KeyRingError
from dllmark.relation.key import Secret, TokenizerId, WatermarkKey
from dllmark.relation.keyring import KeyRing
from dllmark.relation.rotation import TEXTS_PER_KEY

TOKENIZER = TokenizerId("some", "sha256:some")
KEY = WatermarkKey(Secret(b"sixteen bytes ok"), 0.5, TOKENIZER, "today")
OTHER = WatermarkKey(Secret(b"another 16 bytes"), 0.25, TOKENIZER, "today")
NOON = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.time = NOON

    def __call__(self):
        return self.time

    def move(self, **time):
        self.time += timedelta(**time)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    """The folder of a ring with one master, `blog`, since an hour before noon."""
    KeyRing.create(tmp_path / "ring").add(KEY, "blog", NOON - timedelta(hours=1))
    return tmp_path / "ring"


@pytest.fixture
def ring(folder, clock):
    return KeyRing(folder, clock=clock)


def test_a_ring_is_private_and_its_keys_are_ordinary_key_files(ring):
    assert stat.S_IMODE(ring.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in ring.folder.iterdir()} == {0o600}
    assert WatermarkKey.load(ring.folder / f"{KEY.id}.key") == KEY
    assert ring.all_keys() == (KEY,)


def test_a_derived_key_is_its_masters_and_has_no_file(ring):
    files = sorted(ring.folder.iterdir())
    entry = ring.derive("customer-17/2026-11")
    assert KeyRing(ring.folder).all_keys()[1] == KEY.derive("customer-17/2026-11")
    assert (entry.master, entry.gamma, entry.tokenizer) == (KEY.id, KEY.gamma, TOKENIZER)
    assert sorted(ring.folder.iterdir()) == files
    for path in files:
        assert KEY.derive("customer-17/2026-11").secret.reveal().hex() not in path.read_text()


def test_the_record_holds_no_secret(ring):
    ring.add(OTHER, "other")
    content = (ring.folder / "ring.json").read_text()
    for key in (KEY, OTHER):
        assert key.secret.reveal().hex() not in content


def test_the_current_key_changes_with_the_date(ring, clock):
    ring.derive("december", begins=NOON + timedelta(days=15))
    assert ring.current() == KEY
    clock.move(days=15)
    assert ring.current() == KEY.derive("december")


def test_a_clock_that_jumps_back_does_not_bring_an_older_key_back(ring, clock):
    ring.derive("december", begins=NOON + timedelta(days=15))
    clock.move(days=16)
    assert ring.current().label == "december"
    clock.move(days=-16)
    assert ring.current().label == "december"


def test_a_clock_before_all_keys_is_an_error_and_no_unmarked_text(folder, clock):
    clock.move(days=-1)
    with pytest.raises(KeyRingError, match="the next one begins 2026-11-16 11:00 UTC"):
        KeyRing(folder, clock=clock).current()


def test_a_retired_key_recognises_and_no_longer_marks(ring):
    ring.derive("one")
    ring.retire("one")
    assert ring.current() == KEY
    assert KEY.derive("one") in ring.all_keys()
    ring.restore("one")
    assert ring.current() == KEY.derive("one")
    ring.retire("one")
    ring.retire("blog")
    with pytest.raises(KeyRingError, match="all are retired"):
        ring.current()


def test_a_retired_master_still_derives(ring):
    ring.retire("blog")
    ring.derive("customer-17")
    assert ring.current() == KEY.derive("customer-17")


def test_what_another_process_changes_is_seen_without_a_restart(ring, folder):
    before = ring.all_keys()
    assert ring.all_keys() is before  # nothing is read again where nothing changed
    other = KeyRing(folder, clock=lambda: NOON + timedelta(seconds=1))
    other.derive("new", begins=NOON)
    other.retire("blog")
    assert ring.current() == KEY.derive("new")
    assert ring.all_keys() == (KEY, KEY.derive("new"))


def test_a_master_is_named_where_there_are_several(ring):
    ring.add(OTHER, "other")
    with pytest.raises(KeyRingError, match=r"2 masters \('blog', 'other'\): say which"):
        ring.derive("sub")
    ring.derive("sub", "other")
    assert ring.all_keys()[2] == OTHER.derive("sub")
    with pytest.raises(KeyRingError, match="derived itself: derive from its master, 'other'"):
        ring.derive("below", "sub")


def test_a_key_with_a_label_of_its_own_keeps_it(ring):
    derived = OTHER.derive("customer-3")
    assert ring.add(derived).label == "customer-3"
    assert KeyRing(ring.folder).all_keys()[1] == derived


def test_two_masters_with_the_same_id_are_refused(ring):
    content = (ring.folder / "ring.json").read_bytes()
    for same in (KEY, replace(KEY, gamma=0.25)):
        with pytest.raises(KeyRingError, match=f"key {KEY.id} is in the ring already, as 'blog'"):
            ring.add(same, "another")
    assert (ring.folder / "ring.json").read_bytes() == content


def test_a_label_that_is_used_is_refused_and_leaves_nothing(ring):
    files = sorted(ring.folder.iterdir())
    for add in (lambda: ring.add(OTHER, "blog"), lambda: ring.derive("blog")):
        with pytest.raises(KeyRingError, match="the label 'blog' is used already"):
            add()
    assert sorted(ring.folder.iterdir()) == files


@pytest.mark.parametrize("change", ["retire", "restore"])
def test_a_label_that_is_not_in_the_ring_is_refused(ring, change):
    with pytest.raises(KeyRingError, match="no key 'blag': `dllmark keys list` shows those"):
        getattr(ring, change)("blag")


def test_what_is_done_already_is_told(ring):
    with pytest.raises(KeyRingError, match="'blog' is not retired"):
        ring.restore("blog")
    ring.retire("blog")
    with pytest.raises(KeyRingError, match="'blog' is retired already"):
        ring.retire("blog")


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o755, 0o710])
def test_a_folder_that_others_can_read_is_refused(folder, mode):
    folder.chmod(mode)
    for opening in (KeyRing, KeyRing.create):
        with pytest.raises(KeyRingError, match=f"run `chmod 700 {folder}`, and make new keys"):
            opening(folder)


def test_a_key_file_that_others_can_read_is_refused(folder):
    (folder / f"{KEY.id}.key").chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        KeyRing(folder).all_keys()


def test_a_folder_without_a_ring_says_how_to_make_one(tmp_path):
    for missing in (tmp_path, tmp_path / "missing"):
        with pytest.raises(KeyRingError, match=r"there is no key ring in .* `dllmark keys new`"):
            KeyRing(missing)


def test_a_damaged_record_names_its_file(folder):
    (folder / "ring.json").write_text("{")
    with pytest.raises(KeyRingError, match=r"ring.json cannot be used: it is cut short"):
        KeyRing(folder)


def test_a_missing_key_file_is_told(folder):
    (folder / f"{KEY.id}.key").unlink()
    with pytest.raises(KeyFileError, match=f"there is no key file .*{KEY.id}.key"):
        KeyRing(folder).all_keys()


def test_a_file_of_another_key_is_refused(folder):
    (folder / f"{KEY.id}.key").unlink()
    OTHER.save(folder / f"{KEY.id}.key")
    with pytest.raises(KeyFileError, match="does not give the key 'blog'"):
        KeyRing(folder).all_keys()


def test_a_derived_key_that_is_not_its_masters_is_refused(ring):
    ring.derive("sub")
    record = json.loads((ring.folder / "ring.json").read_bytes())
    record["keys"][1]["label"] = "changed"
    (ring.folder / "ring.json").write_text(json.dumps(record))
    with pytest.raises(KeyFileError, match="does not give the key 'changed'"):
        KeyRing(ring.folder).all_keys()


def test_a_key_whose_adding_was_cut_off_can_be_added_again(ring, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    OTHER.save(ring.folder / f"{OTHER.id}.key")  # the file is there, and the record was not written
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"ring.json: No space left"):
            ring.add(OTHER, "other")
    assert ring.all_keys() == (KEY,)
    ring.add(OTHER, "other")
    assert ring.all_keys() == (KEY, OTHER)


def test_changes_wait_for_each_other(folder):
    """Eight threads with a ring of their own each: no change is lost."""

    def change(number):
        KeyRing(folder).derive(f"customer-{number}")

    threads = [threading.Thread(target=change, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    labels = {key.label for key in KeyRing(folder).record.keys}
    assert labels == {"blog", *(f"customer-{number}" for number in range(8))}


def test_a_ring_does_not_print_its_secrets(ring):
    ring.all_keys()
    assert KEY.secret.reveal().hex() not in repr(vars(ring)) + repr(ring)


def test_a_ring_counts_the_texts_of_each_key_and_keeps_no_text(ring):
    assert ring.texts() == {}
    ring.count(KEY, 3)
    ring.derive("sub")
    ring.count(KEY.derive("sub"), 1)
    KeyRing(ring.folder).count(KEY, 2)
    assert ring.texts() == {KEY.id: 5, KEY.derive("sub").id: 1}
    assert stat.S_IMODE((ring.folder / "texts.json").stat().st_mode) == 0o600
    assert ring.current() == KEY.derive("sub")  # nobody asked for a rotation


def test_counts_of_several_processes_add_up(folder):
    threads = [threading.Thread(target=lambda: KeyRing(folder).count(KEY, 1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert KeyRing(folder).texts() == {KEY.id: 8}


def test_after_so_many_texts_the_next_key_takes_over(ring, clock):
    ring.rotate_after(10)
    ring.count(KEY, 9)
    assert ring.current() == KEY
    clock.move(seconds=1)
    ring.count(KEY, 1)
    second = KEY.derive("blog#2")
    assert ring.current() == second == ring.current("blog")
    ring.count(KEY, 1)  # a text that was begun before
    assert len(ring.record.keys) == 2
    clock.move(seconds=1)
    ring.count(second, 12)
    assert ring.current() == KEY.derive("blog#3")
    ring.rotate_after(None)
    ring.count(ring.current(), 100)
    assert len(ring.record.keys) == 3


def test_a_rotation_takes_over_though_the_clock_stands_still_or_went_back(ring, clock):
    ring.rotate_after(1)
    clock.move(days=3)
    ring.derive("sub")
    clock.move(days=-3)
    ring.count(KEY.derive("sub"), 1)
    assert ring.current("sub") == KEY.derive("sub#2")


def test_a_key_planned_for_later_still_takes_over_after_a_rotation(ring, clock):
    ring.derive("december", begins=NOON + timedelta(days=15))
    ring.rotate_after(1)
    ring.count(KEY, 1)
    assert ring.current() == KEY.derive("blog#2")
    clock.move(days=15)
    assert ring.current() == KEY.derive("december")


@pytest.mark.parametrize("content", ["{", "[]", '{"a": "b"}', '{"a": 1.5}'])
def test_damaged_counts_are_a_clear_error(ring, content):
    (ring.folder / "texts.json").write_text(content)
    for use in (ring.texts, lambda: ring.count(KEY, 1)):
        with pytest.raises(KeyRingError, match="restore it, or remove it to count from 0"):
            use()


@pytest.mark.parametrize("after", [0, -1, 1.5, True])
def test_a_rotation_needs_a_number_of_texts(ring, after):
    with pytest.raises(KeyRingError, match="after 1 text at least"):
        ring.rotate_after(after)


def test_a_key_that_marked_too_much_and_still_marks_is_named(ring, clock):
    ring.count(KEY, TEXTS_PER_KEY)
    assert ring.overused() == []
    ring.count(KEY, 1)
    assert [key.label for key in ring.overused()] == ["blog"]
    clock.move(seconds=1)
    ring.derive("blog/next")
    assert ring.overused() == []
