"""Write files so that nobody ever sees half of one, and folders so that no two runs mix."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dllmark.errors import InputError


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o644, overwrite: bool = True) -> Iterator[BinaryIO]:
    """Open a file that appears under `path` only once it is complete.

    The bytes go to a temporary file in the same folder, which is moved into place when the block
    ends without an error and removed otherwise. With `overwrite=False` an existing file is never
    replaced, even one that appears meanwhile: `FileExistsError` is raised instead.

        with atomic_write(Path("table.csv")) as file:
            file.write(b"a,b")
    """
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(str(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        if overwrite:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, fails where the name is taken
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


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
def writable(folder: Path) -> Iterator[None]:
    """Turn what cannot be written to a folder into an error that says so."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Make a folder, and hold it so that no second run writes there; a crash lets go of it.

    with only_writer(Path("results")):
        ...
    """
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows, where a folder cannot be held
        yield
        return
    with writable(folder):
        held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another run is writing to {folder}: wait for it to end") from None
        except OSError:  # a file system that knows no locks
            pass
        yield
    finally:
        os.close(held)
