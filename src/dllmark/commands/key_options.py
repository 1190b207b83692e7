"""Where commands get their keys: files, a ring, or the environment; and passphrases."""

from __future__ import annotations

import getpass
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dllmark.errors import DllmarkError, InputError, KeyFileError
from dllmark.terminal import err

if TYPE_CHECKING:
    from dllmark.relation.key import Secret, WatermarkKey
    from dllmark.relation.keyring import KeyRing

KEY = "DLLMARK_KEY"
PASSPHRASE = "DLLMARK_PASSPHRASE"  # noqa: S105 - its name, not itself


class Unlocker:
    """Gives the passphrase of locked key files: the environment's, else one that is typed, once.

    What the environment holds is taken out of it, so that no child process gets it.
    """

    def __init__(self) -> None:
        self.passphrase: Secret | None = None

    def __call__(self, name: str) -> Secret:
        """Return the passphrase, which is asked for by the name of a file.

        Once a server runs, in other threads, it is too late to ask.
        """
        if self.passphrase is None:
            self.passphrase = _given()
        if self.passphrase is None:
            if threading.current_thread() is not threading.main_thread():
                raise KeyFileError(
                    f"{name} is locked with a passphrase that the server was not given: start it "
                    "again"
                )
            self.passphrase = _typed(f"Passphrase of {name}: ")
        return self.passphrase


def new_passphrase() -> Secret:
    """Return the passphrase for a new key: typed twice, unless the environment has it."""
    given = _given()
    if given is not None:
        return given
    passphrase = _typed("New passphrase: ")
    if passphrase != _typed("The same again: "):
        raise InputError("the two passphrases differ: nothing is written, try again")
    return passphrase


def all_keys(files: Sequence[Path] | None, folder: Path | None = None) -> list[WatermarkKey]:
    """Return the keys of the files or of the ring; without either, those of DLLMARK_KEY."""
    return labelled_keys(files, folder)[0]


def labelled_keys(
    files: Sequence[Path] | None, folder: Path | None
) -> tuple[list[WatermarkKey], dict[str, str]]:
    """Return the keys, and what those that have a label are called, by id."""
    ring = chosen_ring(files, folder)
    if ring is None:
        keys = _of_files(files) if files else _of_environment()
        return keys, {key.id: key.label for key in keys if key.label}
    keys = list(ring.all_keys())
    if not keys:
        raise InputError(f"the ring {folder} is empty: make a key with `dllmark keys new`")
    return keys, ring.labels()


def one_key(files: Sequence[Path] | None, command: str) -> WatermarkKey:
    """Return the key of a command that takes one."""
    keys = all_keys(files)
    if len(keys) != 1:
        raise InputError(f"{command} works with one key, and {len(keys)} are given")
    return keys[0]


def chosen_ring(
    files: Sequence[Path] | None, folder: Path | None, label: str | None = None
) -> KeyRing | None:
    """Open the ring that is chosen, if one is."""
    if folder is None:
        if label is not None:
            raise InputError("--label chooses keys of a ring: give it with --keyring")
        return None
    if files:
        raise InputError("give --key or --keyring, not both")
    return open_ring(folder)


def current_key(ring: KeyRing, label: str | None, model: str | None) -> WatermarkKey:
    """Return the key that marks now; where a model is named, of those for its tokenizer."""
    from dllmark.relation.tokenizer import load_tokenizer, source_of_model

    fingerprint = load_tokenizer(source_of_model(model)).fingerprint if model else None
    return ring.current(label, fingerprint)


def marking_key(
    files: Sequence[Path] | None, ring: KeyRing | None, label: str | None, model: str | None
) -> WatermarkKey | None:
    """Return the key to mark with, of the ring if there is one; None where no key is given."""
    if ring is not None:
        return current_key(ring, label, model)
    return one_key(files, "generate") if files or os.environ.get(KEY) else None


def text_counter(ring: KeyRing | None, key: WatermarkKey | None) -> Callable[[int], None]:
    """Return what tells the ring that its key has marked some more texts, if there is one.

    Where the ring cannot be told, say because it is mounted read-only, a line says so.
    """

    def count(texts: int) -> None:
        if ring and key:
            try:
                ring.count(key, texts)
            except DllmarkError as error:
                err.print(f"texts that the key marks are not counted: {error}")

    return count


def open_ring(folder: Path) -> KeyRing:
    """Open a ring, whose passphrase is asked for where it is needed."""
    from dllmark.relation.keyring import KeyRing

    return KeyRing(folder, unlock=Unlocker())


def _of_files(files: Sequence[Path]) -> list[WatermarkKey]:
    from dllmark.relation.key import WatermarkKey

    unlock = Unlocker()
    return [WatermarkKey.load(path, unlock) for path in files]


def _of_environment() -> list[WatermarkKey]:
    """Return the keys of DLLMARK_KEY: the content of a key file, or paths of key files."""
    from dllmark.relation.key import Secret, WatermarkKey

    content = os.environ.pop(KEY, "").strip()
    if not content:
        raise InputError(f"give a key with --key or --keyring, or in {KEY}")
    if content.startswith("{"):
        secret = Secret(content.encode(errors="surrogateescape"))
        del content
        return [WatermarkKey.from_json(secret, f"the key in {KEY}", Unlocker())]
    paths = content.split(os.pathsep)
    if not all(map(os.path.exists, paths)):  # it may be the bare secret, so it is not quoted
        raise InputError(
            f"{KEY} holds neither the content of a key file, which begins with {{, nor paths of "
            "key files that are there"
        )
    return _of_files([Path(path) for path in paths])


def _given() -> Secret | None:
    """Take the passphrase out of the environment, if it is there."""
    from dllmark.relation.key import Secret

    passphrase = os.environ.pop(PASSPHRASE, "")
    return Secret(passphrase.encode(errors="surrogateescape")) if passphrase else None


def _typed(prompt: str) -> Secret:
    """Ask for a passphrase on the terminal, which shows nothing of it."""
    from dllmark.relation.key import Secret

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # else it would read the input
            typed = getpass.getpass(prompt)
    except (getpass.GetPassWarning, EOFError):
        raise KeyFileError(
            f"there is no terminal to ask for the passphrase: put it in {PASSPHRASE}"
        ) from None
    if not typed:
        raise KeyFileError("the passphrase is empty: type one")
    return Secret(typed.encode(errors="surrogateescape"))
