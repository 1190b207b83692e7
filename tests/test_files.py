"""Files appear whole or not at all."""

import errno
import stat

import pytest

from dllmark.errors import InputError
from dllmark.files import append_line, atomic_write, only_writer, whole_lines


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


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_file_gets_the_mode_asked_for(tmp_path, mode, overwrite):
    with atomic_write(tmp_path / "table", mode=mode, overwrite=overwrite) as file:
        file.write(b"all of it")
    assert stat.S_IMODE((tmp_path / "table").stat().st_mode) == mode


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
    with only_writer(folder):
        assert folder.is_dir()
        reason = r"another run is writing to .*folder: wait for it"
        with pytest.raises(InputError, match=reason), only_writer(folder):
            pytest.fail("the block must not run")
    with only_writer(folder):
        pass


def test_a_file_system_without_locks_holds_nothing(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuse)
    with only_writer(tmp_path), only_writer(tmp_path):
        (tmp_path / "file").touch()


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").touch()
    reason = r"cannot write to .*file: File exists"
    with pytest.raises(InputError, match=reason), only_writer(tmp_path / "file"):
        pytest.fail("the block must not run")
