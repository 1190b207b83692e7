"""Hold a scan at a known point without waiting for time to pass: one of its inputs is a pipe."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

from corpora import FIXED_TIME


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    os.utime(path, (FIXED_TIME, FIXED_TIME))
    return path


def open_when_read(path: Path, process: subprocess.Popen | None = None) -> int:
    """Return the pipe's writing end, as soon as somebody reads from it."""
    while (descriptor := _open_if_read(path)) is None:
        yield_to(process)
    return descriptor


def _open_if_read(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        assert error.errno == errno.ENXIO, error
        return None


def reader_of(path: Path, process: subprocess.Popen | None = None, but: int = 0) -> int:
    """Return the process that reads from a pipe, as soon as there is another than `but`."""
    while True:
        for entry in Path("/proc").glob("[0-9]*"):
            if int(entry.name) != but and _reads(entry, path):
                return int(entry.name)
        yield_to(process)


def _reads(entry: Path, path: Path) -> bool:
    """Whether a process has a pipe open for reading: one that just forked has our writing end."""
    try:
        return any(
            os.readlink(link) == str(path) and _flags(entry / "fdinfo" / link.name) == os.O_RDONLY
            for link in (entry / "fd").iterdir()
        )
    except OSError:
        return False


def _flags(about: Path) -> int:
    """Whether a descriptor reads, writes or does both, from what the kernel says about it."""
    words = about.read_text().split()
    return int(words[words.index("flags:") + 1], 8) & os.O_ACCMODE


def yield_to(process: subprocess.Popen | None) -> None:
    """Let others run; fail if the process that is waited for has ended."""
    if process is None:
        os.sched_yield()
        return
    try:
        status = process.wait(0.01)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(f"the scan ended with {status}: {process.stderr.read()}")


def feed(descriptor: int, content: bytes) -> None:
    """Write all of some bytes into a pipe and close it."""
    os.set_blocking(descriptor, True)
    with open(descriptor, "wb") as file:
        file.write(content)
