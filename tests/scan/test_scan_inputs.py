"""Which files a scan reads."""

import errno
import os

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from dllmark.errors import InputError
from dllmark.scan.inputs import find_files


@pytest.fixture
def folder(tmp_path):
    """A folder with files below it that are to be read, and some that are not."""
    for name in (
        "b.jsonl",
        "a/x.parquet",
        "a/y.txt",
        ".hidden",
        "_SUCCESS",
        "a/.z/w.txt",
        "out/r.p",
    ):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12345")
    return tmp_path / "in"


def names(folder, *inputs):
    files = find_files([str(one) for one in inputs], str(folder / "out")).files
    return [file.path.removeprefix(f"{folder}/") for file in files]


def test_a_folder_gives_its_files_in_order_without_hidden_ones_and_without_the_results(folder):
    assert names(folder, folder) == ["a/x.parquet", "a/y.txt", "b.jsonl"]


def test_a_glob_gives_what_it_matches_and_what_is_inside(folder):
    assert names(folder, folder / "*.jsonl") == ["b.jsonl"]
    assert names(folder, folder / "[ab]*") == ["a/x.parquet", "a/y.txt", "b.jsonl"]


def test_a_file_given_twice_is_read_once(folder):
    assert names(folder, folder / "b.jsonl", folder) == ["b.jsonl", "a/x.parquet", "a/y.txt"]


def test_a_hidden_file_is_read_when_it_is_named(folder):
    assert names(folder, folder / ".hidden") == [".hidden"]


def test_a_name_with_brackets_is_a_name_where_such_a_file_exists(folder):
    (folder / "x[1].txt").write_text("text")
    assert names(folder, folder / "x[1].txt") == ["x[1].txt"]


def test_relative_paths_become_absolute_since_workers_may_stand_elsewhere(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert names(folder, "b.jsonl") == ["b.jsonl"]


def test_a_file_is_known_by_its_size_and_time(folder):
    [before] = find_files([str(folder / "b.jsonl")], "out").files
    assert before.size == 5
    (folder / "b.jsonl").write_text("123456")
    [after] = find_files([str(folder / "b.jsonl")], "out").files
    assert (after.path, after.size) == (before.path, 6)
    assert after != before


def test_urls_are_read_through_fsspec():
    fsspec.filesystem("memory").pipe({"/crawl/a.jsonl": b"123", "/crawl/b.txt": b"1"})
    files = find_files(["memory://crawl"], "out").files
    assert [(file.path, file.size) for file in files] == [
        ("memory:///crawl/a.jsonl", 3),
        ("memory:///crawl/b.txt", 1),
    ]


@pytest.mark.parametrize("given", ["missing.txt", "missing*", "nonsense://x", "memory://nothing"])
def test_an_input_that_is_not_there_is_a_clear_error(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no file missing|nonsense|no file memory://nothing"):
        find_files([given], "out")


def unreadable(folder, given):
    folders = find_files([str(given)], str(folder / "out")).unreadable
    return {one.path.removeprefix(f"{folder}/"): one.reason for one in folders}


@pytest.mark.parametrize("pattern", ["", "*", "**", "a*/*"])
def test_a_folder_below_that_may_not_be_read_is_named(folder, forbid, pattern):
    (folder / "ab").mkdir()
    forbid(folder / "ab")
    assert unreadable(folder, folder / pattern) == {"ab": "cannot be read: Permission denied"}
    assert "a/x.parquet" in names(folder, folder / pattern)


def test_a_folder_that_is_passed_over_may_be_unreadable(folder, forbid):
    forbid(folder / "a" / ".z")
    forbid(folder / "out")
    assert unreadable(folder, folder) == {}


def test_a_folder_whose_entries_may_not_be_looked_at_is_named(folder, monkeypatch):
    info = LocalFileSystem.info

    def refuse(self, path, **options):
        if isinstance(path, os.DirEntry) and path.name == "x.parquet":
            raise PermissionError(errno.EACCES, "Permission denied", path.path)
        return info(self, path, **options)

    monkeypatch.setattr(LocalFileSystem, "info", refuse)
    assert unreadable(folder, folder) == {"a": "cannot be read: Permission denied"}


def test_a_link_to_a_folder_is_named_and_not_followed(folder):
    (folder / "linked").symlink_to(folder / "a")
    assert unreadable(folder, folder) == {"linked": "is a link to a folder, which is not followed"}
    assert names(folder, folder / "linked") == ["linked/x.parquet", "linked/y.txt"]


def test_a_link_to_nowhere_among_the_matches_of_a_glob_is_named(folder):
    (folder / "b.lost").symlink_to(folder / "gone")
    assert unreadable(folder, folder / "b.*") == {
        "b.lost": "cannot be read: No such file or directory"
    }


@pytest.mark.parametrize("given", ["in", "in/*", "in/sub"])
def test_a_top_folder_that_may_not_be_read_is_said_to_be(tmp_path, forbid, given):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    forbid(tmp_path / "in" / "sub")
    if given != "in/sub":
        forbid(tmp_path / "in")
    with pytest.raises(InputError, match=r"in(/sub)? cannot be read: Permission denied"):
        find_files([str(tmp_path / given)], "out")


def test_a_failing_disk_is_not_taken_for_a_private_folder(folder, monkeypatch):
    def broken(path):
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(InputError, match=r"cannot read .*in: Input/output error"):
        find_files([str(folder)], "out")


@pytest.mark.parametrize("content", [[], [".hidden"], ["out/rows"]])
def test_an_empty_folder_is_not_said_to_be_missing(tmp_path, content):
    (tmp_path / "in").mkdir()
    for name in content:
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text("x")
    with pytest.raises(InputError, match=r"the folder .*in holds nothing to scan"):
        find_files([str(tmp_path / "in")], str(tmp_path / "in" / "out"))
