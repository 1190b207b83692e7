"""A folder's notes add up, and say which version wrote."""

import json
import resource
import subprocess

import pytest

from dllmark import __version__
from dllmark.experiments import runs
from dllmark.experiments.runs import Runs, Written, revision, summary


def note(setting="kgw", texts=4, seconds=1.5, **changes):
    given = {
        "prompts": "C4", "setting": setting, "texts": texts, "seconds": seconds, "model": "m",
        "tokens": 16, "suppress_end": False, "block": 8, "batch": 4, "hardware": "GPU",
        "command": "dllmark reproduce", "date": "2026-11-15", "software": "torch 2",
    }  # fmt: skip
    return Written(**(given | changes))


def test_the_batches_of_one_file_are_one_line(tmp_path):
    path = tmp_path / "runs.jsonl"
    kept = Runs(path)
    for setting in ("kgw", "kgw", "predictive", "predictive"):
        kept.add(note(setting))
    notes = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["setting"], one["texts"], one["seconds"]) for one in notes] == [
        ("kgw", 8, 3.0), ("predictive", 8, 3.0)]  # fmt: skip
    later = Runs(path)
    assert later.notes == kept.notes
    later.add(note("predictive", 2))
    assert [one.texts for one in Runs(path).of("C4", "predictive")] == [8, 2]


def test_a_note_that_was_cut_off_is_replaced(tmp_path):
    path = tmp_path / "runs.jsonl"
    Runs(path).add(note())
    with path.open("ab") as file:
        file.write(b'{"prompts": "C')
    Runs(path).add(note("predictive"))
    assert [one.setting for one in Runs(path).notes] == ["kgw", "predictive"]


def test_a_full_disk_loses_no_note(tmp_path):
    kept = Runs(tmp_path / "runs.jsonl")
    kept.add(note())
    before, most = kept.notes.copy(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most[1]))  # bytes of a file
    try:
        with pytest.raises(OSError, match="File too large"):
            kept.add(note())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert Runs(tmp_path / "runs.jsonl").notes == before


def test_a_summary_adds_what_was_written_alike():
    notes = [note(seconds=3000), note("predictive", 1000, 700), note(hardware="CPU")]
    assert summary(notes) == (
        "1,004 texts in 1:01:40 on GPU, torch 2, 2026-11-15, by `dllmark reproduce`; "
        "4 texts in 0:00:02 on CPU, torch 2, 2026-11-15, by `dllmark reproduce`"
    )
    assert summary([]) == "not noted"


@pytest.fixture
def no_cached_revision(monkeypatch):
    revision.cache_clear()
    yield monkeypatch
    revision.cache_clear()


def test_the_commit_is_given_where_there_is_a_checkout(no_cached_revision, tmp_path):
    package = tmp_path / "dllmark" / "experiments"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    no_cached_revision.setattr(runs, "__file__", str(package / "runs.py"))

    def git(*arguments):
        options = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *options, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert revision() == __version__  # below a checkout, but not of it
    revision.cache_clear()
    git("add", ".")
    git("commit", "-m", "one")
    assert revision() == f"{__version__} ({git('rev-parse', '--short', 'HEAD')})"
    revision.cache_clear()
    (package / "__init__.py").write_text("1")
    assert revision().endswith("-dirty)")


def test_without_git_the_version_must_do(no_cached_revision):
    no_cached_revision.setattr(runs.shutil, "which", lambda name: None)
    assert revision() == __version__
