"""Which files a scan reads."""

import fsspec
import pytest

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
    found = find_files([str(one) for one in inputs], str(folder / "out"))
    return [file.path.removeprefix(f"{folder}/") for file in found]


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
    [before] = find_files([str(folder / "b.jsonl")], "out")
    assert before.size == 5
    (folder / "b.jsonl").write_text("123456")
    [after] = find_files([str(folder / "b.jsonl")], "out")
    assert (after.path, after.size) == (before.path, 6)
    assert after != before


def test_urls_are_read_through_fsspec():
    fsspec.filesystem("memory").pipe({"/crawl/a.jsonl": b"123", "/crawl/b.txt": b"1"})
    found = find_files(["memory://crawl"], "out")
    assert [(file.path, file.size) for file in found] == [
        ("memory:///crawl/a.jsonl", 3),
        ("memory:///crawl/b.txt", 1),
    ]


@pytest.mark.parametrize("given", ["missing.txt", "missing*", "nonsense://x", "memory://nothing"])
def test_an_input_that_is_not_there_is_a_clear_error(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"missing|nonsense|nothing"):
        find_files([given], "out")
