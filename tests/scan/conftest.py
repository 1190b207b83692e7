"""Scanning needs pyarrow: without it these tests are skipped."""

import errno
import os
from contextlib import contextmanager

import pytest

pytest.importorskip("pyarrow", reason="pip install 'dllmark[scan]'")


@pytest.fixture(autouse=True)
def _own_environment(scan_environment):
    """Undo what a scan in this process says to the tokenizers."""


@pytest.fixture
def nothing_drawn(monkeypatch):
    """Leave the plot of a summary out: its own tests draw it, and it takes longer than a scan."""
    monkeypatch.setattr(
        "dllmark.scan.summary._plot", lambda summary, path: path.write_bytes(b"a plot")
    )


@pytest.fixture
def forbid(monkeypatch):
    """Make folders that nobody may read, root neither, whom no mode keeps out."""
    forbidden = set()
    scandir = os.scandir

    def checked(path="."):
        if isinstance(path, str) and path in forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", checked)

    @contextmanager
    def until(path):
        yield
        forbidden.remove(str(path))

    def forbid(path):
        forbidden.add(str(path))
        return until(path)

    return forbid
