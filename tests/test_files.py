"""Files appear whole or not at all, and have one writer at a time."""

import errno
import os
import signal
import stat
import subprocess
import sys

import pytest

from dllmark.errors import InputError
from dllmark.files import (
    append_line,
    atomic_write,
    only_writer_in,
    only_writer_of,
    whole_lines,
)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_appears_only_once_it_is_complete(tmp_path, overwrite):
    path = tmp_path / "table"
    with atomic_write(path, overwrite=overwrite) as file:
        file.write(b"all of it")
        file.flush()
        assert not path.exists()
    assert contents(tmp_path) == {"table": b"all of it"}


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_failed_write_leaves_nothing_behind(tmp_path, overwrite):
    with (
        pytest.raises(RuntimeError, match="half way"),
        atomic_write(tmp_path / "table", overwrite=overwrite) as file,
    ):
        file.write(b"half of it")
        raise RuntimeError("half way")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_file_that_was_there(tmp_path):
    (tmp_path / "table").write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(tmp_path / "table") as file:
        file.write(b"new")
        raise RuntimeError
    assert contents(tmp_path) == {"table": b"old"}


def test_a_file_is_replaced_unless_told_otherwise(tmp_path):
    (tmp_path / "table").write_bytes(b"old")
    with atomic_write(tmp_path / "table") as file:
        file.write(b"new")
    assert contents(tmp_path) == {"table": b"new"}


def test_an_existing_file_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "table").write_bytes(b"old")
    with (
        pytest.raises(FileExistsError),
        atomic_write(tmp_path / "table", overwrite=False),
    ):
        pytest.fail("the block must not run")
    assert contents(tmp_path) == {"table": b"old"}


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    with (
        pytest.raises(FileExistsError),
        atomic_write(tmp_path / "table", overwrite=False) as file,
    ):
        file.write(b"ours")
        (tmp_path / "table").write_bytes(b"theirs")
    assert contents(tmp_path) == {"table": b"theirs"}


def test_a_link_to_nowhere_counts_as_a_file_that_is_there(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError), atomic_write(tmp_path / "link", overwrite=False):
        pytest.fail("the block must not run")
    assert not (tmp_path / "nowhere").exists()


def test_a_name_that_cannot_be_taken_leaves_no_temporary_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError), atomic_write(tmp_path / "folder") as file:
        file.write(b"never seen")
    assert contents(tmp_path) == {}


@pytest.fixture
def umask():
    """Set the umask for one test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_a_file_has_the_mode_that_the_umask_says(tmp_path, umask, mask, mode, overwrite):
    umask(mask)
    with atomic_write(tmp_path / "table", overwrite=overwrite) as file:
        file.write(b"all of it")
    assert stat.S_IMODE((tmp_path / "table").stat().st_mode) == mode


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, umask):
    (tmp_path / "table").touch()
    (tmp_path / "table").chmod(0o640)
    with atomic_write(tmp_path / "table") as file:
        file.write(b"new")
    assert stat.S_IMODE((tmp_path / "table").stat().st_mode) == 0o640


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_private_file_is_its_owners_from_the_first_byte_on(tmp_path, umask, overwrite):
    umask(0)
    if overwrite:
        (tmp_path / "secret").touch()
        (tmp_path / "secret").chmod(0o644)
    with atomic_write(tmp_path / "secret", private=True, overwrite=overwrite) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_appended_lines_replace_one_that_was_cut_off(tmp_path):
    path = tmp_path / "lines"
    assert whole_lines(path) == ([], 0)
    end = append_line(path, 0, b"one\n")
    path.write_bytes(b"one\ntw")
    assert whole_lines(path) == ([b"one"], end)
    assert append_line(path, end, b"two\n") == 8
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    pytest.importorskip("fcntl")
    folder = tmp_path / "new" / "folder"
    with only_writer_in(folder):
        assert folder.is_dir()
        reason = r"another run is writing to .*folder: wait for it"
        with pytest.raises(InputError, match=reason), only_writer_in(folder):
            pytest.fail("the block must not run")
    with only_writer_in(folder):
        pass


LOCKED = r"another run is writing to .*texts.jsonl: wait for it to end"


@pytest.mark.parametrize("content", [None, b"", b"a line\n"], ids=["new", "empty", "written"])
def test_a_file_has_one_writer_at_a_time(tmp_path, content):
    pytest.importorskip("fcntl")
    path = tmp_path / "texts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with only_writer_of(path):
        with pytest.raises(InputError, match=LOCKED), only_writer_of(path):
            pytest.fail("the block must not run")
        with only_writer_of(tmp_path / "other.jsonl"):
            pass
    with only_writer_of(path):
        pass
    assert contents(tmp_path) == ({} if content is None else {"texts.jsonl": content})


def test_a_link_is_locked_as_the_file_it_leads_to(tmp_path):
    pytest.importorskip("fcntl")
    path, link = tmp_path / "texts.jsonl", tmp_path / "link"
    link.symlink_to(path)
    with only_writer_of(link), pytest.raises(InputError, match=LOCKED), only_writer_of(path):
        pytest.fail("the block must not run")
    assert (link.is_symlink(), path.exists()) == (True, False)


def test_what_was_written_under_the_lock_stays_and_has_the_mode_that_the_umask_says(
    tmp_path, umask
):
    umask(0o027)
    path = tmp_path / "texts.jsonl"
    with only_writer_of(path):
        append_line(path, 0, b"one\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with only_writer_of(path), atomic_write(path) as file:
        file.write(b"two\n")
    assert contents(tmp_path) == {"texts.jsonl": b"two\n"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_lock_is_on_the_file_that_has_the_name_now(tmp_path, monkeypatch):
    """The first run replaces the file after the second has opened it and before it locks it."""
    fcntl = pytest.importorskip("fcntl")
    path, flock = tmp_path / "texts.jsonl", fcntl.flock
    path.write_bytes(b"old\n")

    def replaced_first(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        with atomic_write(path) as file:
            file.write(b"new\n")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced_first)
    with only_writer_of(path), pytest.raises(InputError, match=LOCKED), only_writer_of(path):
        pytest.fail("the block must not run")
    assert contents(tmp_path) == {"texts.jsonl": b"new\n"}


def test_a_run_that_is_killed_lets_go_of_its_file(tmp_path):
    path = tmp_path / "texts.jsonl"
    code = (
        "import os, pathlib, signal\n"
        "from dllmark.files import only_writer_of\n"
        f"with only_writer_of(pathlib.Path({str(path)!r})): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    with only_writer_of(path):
        pass


def test_a_file_that_cannot_be_locked_is_an_error_of_one_line(tmp_path):
    for path, reason in {
        tmp_path / "no" / "x": "make the folder .*/no first",
        tmp_path: "Is a directory",
    }.items():
        with (
            pytest.raises(InputError, match=f"cannot write to {path}: {reason}"),
            only_writer_of(path),
        ):
            pytest.fail("the block must not run")


def test_a_file_system_without_locks_holds_nothing(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuse)
    with only_writer_in(tmp_path), only_writer_in(tmp_path):
        (tmp_path / "file").touch()
    with only_writer_of(tmp_path / "file"), only_writer_of(tmp_path / "file"):
        pass


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").touch()
    reason = r"cannot write to .*file: File exists"
    with pytest.raises(InputError, match=reason), only_writer_in(tmp_path / "file"):
        pytest.fail("the block must not run")
