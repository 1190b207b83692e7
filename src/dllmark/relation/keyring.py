"""Many keys in one folder: the current one marks, and all of them recognise.

The folder holds ordinary key files (`<id>.key`), a record of their public facts (`ring.json`) and
how many texts each key has marked (`texts.json`). A derived key is an entry of the record alone:
its master and its label give its secret. Only the folder's owner may enter it.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from dllmark.errors import KeyFileError, KeyRingError
from dllmark.files import atomic_write, only_writer_in, reading, writing
from dllmark.relation.key import (
    Secret,
    Unlock,
    WatermarkKey,
    check_label,
    passphrase_from_environment,
    refuse_secret,
)
from dllmark.relation.ring_record import RingKey, RingRecord, check_rotation
from dllmark.relation.rotation import TEXTS_PER_KEY

RECORD = "ring.json"
TEXTS = "texts.json"
LARGEST = 1 << 28
"""Bytes that are read of a record: a million derived keys."""


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(timezone.utc)


class KeyRing:
    """The keys in a folder. What others change there is seen when it is next asked.

    Its clock never goes back: a key that has taken over stays current, whatever the system's clock
    does.

    >>> ring = KeyRing.create("ring")  # doctest: +SKIP
    >>> ring.add(key, "blog").label  # doctest: +SKIP
    'blog'
    >>> ring.derive("customer-17/2026-11").label  # doctest: +SKIP
    'customer-17/2026-11'
    >>> ring.current("customer-17").label  # doctest: +SKIP
    'customer-17/2026-11'
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        clock: Callable[[], datetime] = utc_now,
        unlock: Unlock = passphrase_from_environment,
    ) -> None:
        self.folder = Path(folder)
        self._clock = clock
        self._unlock = unlock
        self._latest = datetime.min.replace(tzinfo=timezone.utc)
        self._lock = threading.RLock()
        self._version: tuple[int, ...] = ()
        self._record = RingRecord()
        self._loaded: dict[str, WatermarkKey] = {}
        self._keys: tuple[WatermarkKey, ...] | None = None
        self.record  # noqa: B018 - what is no ring is told here

    @classmethod
    def create(cls, folder: str | Path, *, unlock: Unlock = passphrase_from_environment) -> KeyRing:
        """Make an empty ring, or open the one that is there."""
        path = Path(folder)
        with writing(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(path)
        with only_writer_in(path, wait=True):
            if not (path / RECORD).exists():
                _write(path / RECORD, RingRecord().to_bytes())
        return cls(path, unlock=unlock)

    @property
    def now(self) -> datetime:
        """The latest time that the clock has shown."""
        with self._lock:
            self._latest = max(self._latest, self._clock())
            return self._latest

    @property
    def record(self) -> RingRecord:
        """The public facts of the keys, as they are now; they are read again where they changed."""
        path = self.folder / RECORD
        try:
            found = path.stat()
        except OSError:
            refuse_secret(self.folder)
            raise KeyRingError(
                f"there is no key ring in {self.folder}: make one with `dllmark keys new`"
            ) from None
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        with self._lock:
            if version != self._version:
                _check_private(self.folder)
                try:
                    with path.open("rb") as file:
                        self._record = RingRecord.from_bytes(file.read(LARGEST))
                except OSError as error:
                    raise KeyRingError(f"cannot read {path}: {error.strerror}") from None
                except KeyRingError as error:
                    raise KeyRingError(f"{path} cannot be used: {error}") from None
                self._version, self._keys = version, None
            return self._record

    def all_keys(self) -> tuple[WatermarkKey, ...]:
        """Return all keys, the retired ones too: each recognises what it has marked.

        While the ring does not change, it is the same tuple each time.
        """
        with self._lock:
            record = self.record
            if self._keys is None:
                self._keys = tuple(self.key(entry) for entry in record.keys)
            return self._keys

    def labels(self) -> dict[str, str]:
        """Return what each key is called, by its id."""
        return {key.id: key.label for key in self.record.keys}

    def current(self, label: str | None = None, fingerprint: str | None = None) -> WatermarkKey:
        """Return the key that marks now: of those that are not retired, the last to begin.

        `label` chooses among the keys under it, `fingerprint` among those for a tokenizer. Where
        there is none, it raises: nothing may be written without a mark.
        """
        with self._lock:
            return self.key(self.record.current(self.now, label, fingerprint))

    def key(self, entry: RingKey) -> WatermarkKey:
        """Return a key with its secret, which must be the one the record speaks of."""
        if entry.id not in self._loaded:
            if entry.master:
                master = self._loaded.get(entry.master)
                master = master or self.key(self._record.find(entry.master))
                key, source = master.derive(entry.label), self.folder / RECORD
            else:
                source = self._path(entry)
                key = WatermarkKey.load(source, self._unlock)
            facts = (key.id, key.gamma, key.tokenizer)
            if facts != (entry.id, entry.gamma, entry.tokenizer):
                raise KeyFileError(
                    f"{source} does not give the key {entry.label!r} that the ring knows as "
                    f"{entry.id}: restore the folder from a backup"
                )
            self._loaded[entry.id] = key
        return self._loaded[entry.id]

    def add(
        self,
        key: WatermarkKey,
        label: str = "",
        begins: datetime | None = None,
        passphrase: Secret | None = None,
    ) -> RingKey:
        """Put a key into the ring, in a file of its own; a derived one may keep its label.

        With a passphrase, its secret is sealed.
        """
        entry = self._entry(key, check_label(label or key.label), begins)
        with self._changing() as change:
            record = self.record.with_keys(entry)
            path = self._path(entry)
            if not path.exists() or WatermarkKey.load(path, self._unlock) != key:
                key.save(path, passphrase)
            change(record)
        return entry

    def derive(
        self, label: str, master: str | None = None, begins: datetime | None = None
    ) -> RingKey:
        """Add the key that a label gives of a master; where the ring has one, it need not be named.

        A retired master derives as before.
        """
        return self.derive_all([label], master, begins)[0]

    def derive_all(
        self, labels: Sequence[str], master: str | None = None, begins: datetime | None = None
    ) -> list[RingKey]:
        """Add the keys of several labels, or none of them where one cannot be added."""
        record = self.record
        source = record.find(master) if master else record.only_master()
        if source.master:
            raise KeyRingError(
                f"{source.label!r} is derived itself: derive from its master, "
                f"{record.find(source.master).label!r}"
            )
        # Before the lock: this may ask for a passphrase, and a server would wait for the answer.
        keys = [self.key(source).derive(label) for label in labels]
        entries = [self._entry(key, key.label, begins, source.id) for key in keys]
        with self._changing() as change:
            change(self.record.with_keys(*entries))
        return entries

    def retire(self, label: str) -> RingKey:
        """End a key's marking; it still recognises. What is being written with it is finished."""
        with self._changing() as change:
            key = self.record.find(label)
            if key.retired:
                raise KeyRingError(f"{key.label!r} is retired already")
            change(self.record.changed(key, retired=self.now))
            return self.record.find(label)

    def restore(self, label: str) -> RingKey:
        """Let a retired key mark again."""
        with self._changing() as change:
            key = self.record.find(label)
            if not key.retired:
                raise KeyRingError(f"{key.label!r} is not retired")
            change(self.record.changed(key, retired=None))
            return self.record.find(label)

    def _entry(
        self, key: WatermarkKey, label: str, begins: datetime | None, master: str | None = None
    ) -> RingKey:
        now = self.now
        created = now.isoformat(timespec="seconds") if master else key.created
        return RingKey(
            key.id, label, key.gamma, key.tokenizer, created, begins or now, master=master
        )

    def _path(self, entry: RingKey) -> Path:
        return self.folder / f"{entry.id}.key"

    def texts(self) -> dict[str, int]:
        """Return how many texts each key has marked, by its id; one that marked none is missing."""
        path = self.folder / TEXTS
        try:
            with path.open("rb") as file:
                counts = json.loads(file.read(LARGEST))
            if isinstance(counts, dict) and all(type(count) is int for count in counts.values()):
                return counts
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            pass
        raise KeyRingError(f"{path} cannot be read: restore it, or remove it to count from 0")

    def count(self, key: WatermarkKey, texts: int) -> None:
        """Note that a key marks some more texts; where the ring says so, the next key takes over.

        Only their number is kept.
        """
        with self._changing() as change:
            counts = self.texts()
            counts[key.id] = counts.get(key.id, 0) + texts
            _write(self.folder / TEXTS, json.dumps(counts).encode() + b"\n")
            record = self.record
            if record.rotate_after and counts[key.id] >= record.rotate_after:
                self._rotate(record, record.find(key.id), change)

    def overused(self) -> list[RingKey]:
        """Return the keys that have marked more texts than is advised, and that still mark."""
        record, counts = self.record, self.texts()
        return [
            key
            for key in record.keys
            if counts.get(key.id, 0) > TEXTS_PER_KEY
            and key.state(self.now) == "active"
            and record.current(self.now, key.stem).id == key.id
        ]

    def rotate_after(self, texts: int | None) -> None:
        """Say after how many texts a key is followed by the next one, or that none is."""
        if texts is not None:
            check_rotation(texts)
        with self._changing() as change:
            change(replace(self.record, rotate_after=texts))

    def _rotate(
        self, record: RingRecord, entry: RingKey, change: Callable[[RingRecord], None]
    ) -> None:
        """Add the key that follows one, unless that was done already."""
        label, begins = record.next_of(entry, self.now)
        if all(key.label != label for key in record.keys):
            source = record.find(entry.master) if entry.master else entry
            key = self.key(source).derive(label)
            change(record.with_keys(self._entry(key, label, begins, source.id)))

    @contextmanager
    def _changing(self) -> Iterator[Callable[[RingRecord], None]]:
        """Keep others from changing the ring meanwhile; give what stores a new record."""

        def store(record: RingRecord) -> None:
            _write(self.folder / RECORD, record.to_bytes())
            self._version = ()

        with self._lock, only_writer_in(self.folder, wait=True):
            yield store


def _write(path: Path, content: bytes) -> None:
    with writing(path), atomic_write(path, private=True) as file:
        file.write(content)


def _check_private(folder: Path) -> None:
    """Raise where others can look into a ring's folder, as far as that can be told."""
    with reading(folder):
        mode = stat.S_IMODE(folder.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise KeyRingError(
            f"the key ring {folder} can be read by other users: run `chmod 700 {folder}`, and make "
            "new keys if others used this machine"
        )
