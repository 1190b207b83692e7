"""Read texts and lines of JSON, and write files whole, one writer at a time.

What cannot be read or written is an `InputError` that names the file, and the line if there is one.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dllmark.errors import InputError


@contextmanager
def reading(name: str | Path) -> Iterator[None]:
    """Turn a failure to read into an error that says what cannot be read."""
    with _explained(f"cannot read {name}"):
        yield


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn a failure to write into an error that says where."""
    with _explained(f"cannot write to {path}"):
        yield


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{problem}: {error.strerror or error}") from None


def others_can_read(file: BinaryIO) -> bool:
    """Return whether an open file can be read by others than its owner, where that can be told."""
    return os.name == "posix" and bool(stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077)


def input_name(path: str) -> str:
    """Return what messages call a file to read."""
    return "standard input" if path == "-" else path


def open_input(path: str) -> BinaryIO:
    """Open a file for reading, or standard input for `-`."""
    if path == "-":
        if sys.stdin is None or sys.stdin.buffer.closed:
            raise InputError("cannot read standard input: it is closed, or was read already")
        return sys.stdin.buffer
    with reading(path):
        return Path(path).open("rb")


def read_input(path: str) -> str:
    """Return the text of a whole file, which must not be blank."""
    with open_input(path) as file, reading(input_name(path)):
        text = decode(file.read(), input_name(path))
    if not text.strip():
        raise _empty(path)
    return text


def read_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers; blank ones are passed over, but not all."""
    blank = True
    with open_input(path) as file, reading(input_name(path)):
        for number, line in enumerate(file, 1):
            if line.strip():
                blank = False
                yield number, line
    if blank:
        raise _empty(path)


def _empty(path: str) -> InputError:
    return InputError(f"{input_name(path)} is empty: it needs at least one text")


def parse_record(line: bytes, source: str, *fields: str) -> dict[str, Any]:
    """Return the object in a line of JSON, which has a string under each of the fields.

    A string alone stands for an object with the first field. `source` says where the line is.

    >>> parse_record(b'"The sky is blue."', "texts.jsonl:1", "text")
    {'text': 'The sky is blue.'}
    """
    shape = ", ".join(f'"{field}": "..."' for field in fields)
    try:
        record = json.loads(decode(line, source))
    except (ValueError, RecursionError):
        raise InputError(f"{source}: not a line of JSON: write each as {{{shape}}}") from None
    if isinstance(record, str):
        record = {fields[0]: record}
    for field in fields:
        value = record.get(field) if isinstance(record, dict) else None
        if not isinstance(value, str):
            raise InputError(f'{source}: no string under "{field}": write each line as {{{shape}}}')
        check_unicode(value, f"{source}: the {field}")
    entries: dict[str, Any] = record
    return entries


def decode(content: bytes, source: str) -> str:
    """Return bytes as text; `source` says where they are from."""
    if b"\0" in content:
        raise InputError(f"{source}: this is binary data, not text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: byte {error.start} is not valid UTF-8; convert the text to UTF-8 first"
        ) from None


def check_unicode(text: str, name: str = "the text") -> None:
    """Raise `InputError` for a string that no file in UTF-8 could hold.

    JSON can write half of a character that takes two escapes, and the shell passes on any bytes.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} holds lone surrogates: it is not valid Unicode") from None


@contextmanager
def atomic_write(
    path: Path, *, private: bool = False, overwrite: bool = True
) -> Iterator[BinaryIO]:
    """Open a file that appears under `path` only once it is complete.

    The bytes go to a temporary file in the same folder, which is moved into place when the block
    ends without an error and removed otherwise. With `overwrite=False` an existing file is never
    replaced, even one that appears meanwhile: `FileExistsError` is raised instead.

    A `private` file can be read by its owner only. Any other is as the umask says, or as the file
    that it replaces.

        with atomic_write(Path("table.csv")) as file:
            file.write(b"a,b")
    """
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(str(path))
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    mode = 0o600 if private else 0o666
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            if not private:
                with suppress(FileNotFoundError):
                    os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, fails where the name is taken
    finally:
        temporary.unlink(missing_ok=True)


def whole_lines(path: Path) -> tuple[list[bytes], int]:
    """Return the lines of a file that is appended to, and where they end.

    What follows its last line end was cut off and does not count. A file that is not there has no
    lines.
    """
    content = path.read_bytes() if path.exists() else b""
    *lines, cut_off = content.split(b"\n")
    return lines, len(content) - len(cut_off)


def append_line(path: Path, end: int, line: bytes) -> int:
    """Write a line at the end of a file's whole lines, and return where they end then."""
    with path.open("ab") as file:
        if file.tell() > end:
            file.truncate(end)
        return end + file.write(line)


@contextmanager
def only_writer_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Make a folder, and lock it so that no second run writes there; a crash lets go of it.

    Where another run has the lock, `wait` waits for it to end: for changes that take no time.

    with only_writer_in(Path("results")):
        ...
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if os.name != "posix":  # elsewhere a folder cannot be opened
        yield
        return
    with writing(folder):
        lock = os.open(folder, os.O_RDONLY)
    try:
        _lock(lock, folder, wait)
        yield
    finally:
        os.close(lock)


@contextmanager
def only_writer_of(path: Path) -> Iterator[None]:
    """Lock a file so that no second run writes to it; a crash lets go of it.

    The file is made if it is not there, and removed if it is still empty at the end. The lock is
    on the file, not on its name: whoever replaces the file (`atomic_write`) does that last.
    """
    if not path.parent.is_dir():
        raise InputError(f"cannot write to {path}: make the folder {path.parent} first")
    if os.name != "posix":  # elsewhere a file that is open cannot be replaced
        yield
        return
    target = Path(os.path.realpath(path))  # a link may lead to a file that is yet to be made
    with writing(path):
        lock, is_new = _locked_file(target)
    try:
        yield
    finally:
        with suppress(OSError):
            if is_new and os.fstat(lock).st_size == 0 and _is_at(lock, target):
                target.unlink()
        os.close(lock)


def _locked_file(path: Path) -> tuple[int, bool]:
    """Return the locked file that has this name, and whether it was made for that."""
    while True:
        try:
            lock, is_new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            try:
                lock, is_new = os.open(path, os.O_RDWR), False
            except FileNotFoundError:  # removed a moment ago
                continue
        try:
            _lock(lock, path)
            if _is_at(lock, path):
                return lock, is_new
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # another run replaced or removed the file before the lock was ours


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, path: Path, wait: bool = False) -> None:
    """Take the lock of an open file or folder, or raise `InputError` if another run has it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise InputError(f"another run is writing to {path}: wait for it to end") from None
    except OSError:  # a file system that knows no locks
        return
