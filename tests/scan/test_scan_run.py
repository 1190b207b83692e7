"""A scan survives what happens to long runs, and always ends in the same bytes."""

import gzip
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import corpora
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import FIXED_TIME, badly_named, errors, lines, rows, tree
from failing import FAILURE, Failing, Unloadable
from processes import feed, make_pipe, open_when_read, reader_of
from samples import marked_text, plain_text

from dllmark.cluster import Engine
from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError, InputError
from dllmark.files import only_writer_in
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.scan import work
from dllmark.scan.reading import Columns
from dllmark.scan.rule import Rule
from dllmark.scan.run import Scan
from dllmark.scan.summary import read_hits
from dllmark.scan.work import ScanSettings

RULE = Rule("fdr", 0.01)
SUPPORT = Path(corpora.__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

pytestmark = pytest.mark.usefixtures("nothing_drawn")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and named pipes")


@pytest.fixture
def scan(key, tmp_path):
    """Scan into a folder of the given name, in small shards unless told otherwise."""

    def scan(*inputs, to="out", workers=1, shard_bytes=6000, **changes):
        settings = ScanSettings(**{"keys": (key,), "rule": RULE, "columns": Columns(), **changes})
        whole = Scan([str(path) for path in inputs], settings, tmp_path / to, shard_bytes)
        return whole.run(Engine(workers=workers))

    return scan


def test_each_document_gets_a_row_and_each_bad_one_an_error(scan, corpus, tmp_path, texts, key):
    summary = scan(corpus)
    scanned = rows(tmp_path / "out")
    assert [row["path"].rsplit("/")[-1] for row in scanned] == [
        *["a.jsonl"] * 20, *["b.jsonl.gz"] * 7, *["c.parquet"] * 2, "d.txt",
    ]  # fmt: skip
    scored = [*texts, *texts[:7], *texts[:2], texts[0]]
    detector = Detector(key)
    for row, text in zip(scanned, scored, strict=True):
        alone = detector.detect(text)
        too_short = alone.verdict.value == "too short"
        assert (row["too_short"], row["pairs"]) == (too_short, alone.pairs)
        assert row["p_value"] == pytest.approx(alone.p_value)
        assert (row["z"], row["key_id"]) == (pytest.approx(alone.z), key.id)
    assert [row["row"] for row in scanned[:22]] == [*range(1, 21), 1, 2]
    assert [scanned[at]["id"] for at in (0, 20, 27, 29)] == ["d0", "d0", "1", None]
    reasons = [
        (Path(one["path"]).name, one["row"], one["reason"]) for one in errors(tmp_path / "out")
    ]
    assert reasons == [
        ("a.jsonl", 21, "not a line of JSON"),
        ("a.jsonl", 22, "the text is null"),
        ("c.parquet", 3, "the text is null"),
        ("e.bin", 1, "binary data, not text"),
    ]
    assert (summary["documents"], summary["watermarked"], summary["errors"]) == (30, 8, 4)


def test_the_number_of_workers_and_a_second_run_change_nothing(scan, corpus, tmp_path):
    first = scan(corpus)
    assert scan(corpus, to="two", workers=2) == first  # several shards for each of them
    assert tree(tmp_path / "two") == tree(tmp_path / "out")
    before = tree(tmp_path / "out")
    assert scan(corpus) == first
    assert tree(tmp_path / "out") == before


def test_the_size_of_shards_changes_no_row(scan, corpus, tmp_path):
    scan(corpus)
    scan(corpus, to="big", shard_bytes=None)
    assert rows(tmp_path / "big") == rows(tmp_path / "out")
    assert len(list((tmp_path / "out" / "rows").iterdir())) > 1


def test_the_size_of_blocks_changes_no_row(scan, corpus, tmp_path, monkeypatch):
    scan(corpus)
    monkeypatch.setattr(work, "BLOCK_TEXTS", 3)
    monkeypatch.setattr(work, "ROW_GROUP", 7)
    scan(corpus, to="small")
    assert rows(tmp_path / "small") == rows(tmp_path / "out")
    assert errors(tmp_path / "small") == errors(tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_a_clear_error(scan, corpus, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match=r"cannot write to .*file"):
        scan(corpus, to="file")


@linux
def test_killed_at_any_moment_it_continues_to_the_same_bytes(corpus, tmp_path, key_file):
    script = SUPPORT / "kill_everywhere.py"
    command = [sys.executable, script, corpus / "a.jsonl", key_file, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["parts"] > 1
    # each file, before and after it is moved
    assert result["moments"] >= 2 * (2 * result["parts"] + 5)
    assert result["different"] == []


@pytest.fixture
def piped(tmp_path, texts):
    """An ordinary file, and a pipe that a scan of both must wait for; each is one shard."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines(texts[:10])))
    return [folder / "a.jsonl.gz", make_pipe(folder / "b.jsonl")]


@pytest.fixture
def start(piped, key_file, tmp_path):
    """Start a scan of both in a process of its own."""

    def start(folder="out"):
        os.utime(piped[1], (FIXED_TIME, FIXED_TIME))
        command = [SUPPORT / "small_shards.py", key_file, tmp_path / folder, 2, 1, *piped]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, *map(str, command)], env=ENVIRONMENT, **pipes)

    return start


def wait_for_end(process):
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll()
    os.close(process)


@linux
def test_a_scan_that_is_killed_with_its_workers_at_work_continues(piped, start, tmp_path, texts):
    pipe, content = piped[1], lines(texts[10:])
    for folder in ("whole", "killed"):
        running = start(folder)
        writing_end = open_when_read(pipe, running)
        if folder == "killed":
            worker = os.pidfd_open(reader_of(pipe, running))
            running.kill()
            running.communicate()
            wait_for_end(worker)  # a worker must not outlive the scan
            os.close(writing_end)
            running = start(folder)
            writing_end = open_when_read(pipe, running)
        feed(writing_end, content)
        assert (*running.communicate(), running.returncode) == (b"", b"", 0)
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    assert len(rows(tmp_path / "killed")) == 20


def in_the_background(work, *arguments):
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


@linux
def test_a_killed_worker_is_replaced_and_its_shard_read_again(piped, scan, tmp_path, texts):
    def kill_then_feed(pipe):
        writing_end = open_when_read(pipe)
        first = reader_of(pipe)
        os.kill(first, signal.SIGKILL)
        reader_of(pipe, but=first)
        feed(writing_end, lines(texts[10:]))

    helper = in_the_background(kill_then_feed, piped[1])
    scan(*piped, workers=2, shard_bytes=1)
    helper.join()
    assert [row["row"] for row in rows(tmp_path / "out")] == [*range(1, 11)] * 2
    assert not list((tmp_path / "out" / "rows").glob(".*"))


@linux
def test_a_shard_that_kills_every_worker_ends_the_scan_and_is_named(piped, scan, tmp_path):
    def kill_three(pipe):
        writing_end, last = open_when_read(pipe), 0
        for _ in range(3):
            last = reader_of(pipe, but=last)
            os.kill(last, signal.SIGKILL)
        os.close(writing_end)

    helper = in_the_background(kill_three, piped[1])
    with pytest.raises(DllmarkError, match=r"3 workers in a row were killed .*b\.jsonl"):
        scan(*piped, workers=2, shard_bytes=1)
    helper.join()


def scan_two_files_with(settings, folder):
    """Scan two files, each with its own worker."""
    paths = [folder / "a.jsonl", folder / "b.jsonl"]
    for path in paths:
        path.write_text('"words"')
    Scan([*map(str, paths)], settings, folder / "out", 1).run(Engine(workers=2))


def test_an_unexpected_error_in_a_worker_is_shown_as_what_it_is(key, tmp_path):
    with pytest.raises(DllmarkError, match=FAILURE) as told:
        scan_two_files_with(Failing((key,), RULE, Columns()), tmp_path)
    assert "memory" not in str(told.value)


def test_a_worker_that_ends_by_itself_is_not_said_to_be_killed(key, tmp_path):
    with pytest.raises(DllmarkError, match=r"3 workers in a row ended with status 7 .*jsonl\. "):
        scan_two_files_with(Unloadable((key,), RULE, Columns()), tmp_path)


@linux
@pytest.mark.parametrize("workers", [1, 2])
def test_a_name_that_is_not_utf8_is_scanned_under_one_that_can_be_shown(
    scan, tmp_path, texts, workers
):
    folder = badly_named(tmp_path / "in", texts[0])
    summary = scan(folder, workers=workers, shard_bytes=1)
    name = f"{folder}/caf\\udce9.txt"
    assert [row["path"] for row in rows(tmp_path / "out")] == [name, f"{folder}/good.txt"]
    assert [one["path"] for one in errors(tmp_path / "out")] == [f"{folder}/\\udcff.jsonl"]
    assert summary["watermarked_by_file"][0]["path"] == name
    assert name in (tmp_path / "out" / "summary.md").read_text()
    assert scan(folder, workers=workers, shard_bytes=1) == summary


def test_a_folder_that_may_not_be_read_is_counted_and_named(scan, corpus, tmp_path, forbid):
    (corpus / "private").mkdir()
    (corpus / "private" / "a.txt").write_text("words")
    readable = scan(corpus, to="readable")
    forbid(corpus / "private")
    summary = scan(corpus)
    assert summary["errors"] == readable["errors"] + 1
    assert summary["documents"] == readable["documents"] - 1
    assert errors(tmp_path / "out")[0] == {
        "path": str(corpus / "private"), "row": None, "reason": "cannot be read: Permission denied",
    }  # fmt: skip
    assert scan(corpus) == summary
    with pytest.raises(InputError, match=r"private: cannot be read: Permission denied \(without"):
        scan(corpus, to="strict", strict=True)


def test_a_folder_that_may_be_read_by_now_is_another_input(scan, corpus, tmp_path, forbid):
    (corpus / "private").mkdir()
    with forbid(corpus / "private"):
        scan(corpus)
    with pytest.raises(InputError, match="other input files, or they changed"):
        scan(corpus)


def test_a_full_disk_leaves_no_half_file(corpus, key_file, tmp_path, scan):
    code = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))\n"  # no file may grow beyond
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [SUPPORT / "small_shards.py", key_file, tmp_path / "out", 1, 6000, corpus]
    command = [sys.executable, "-c", code, *map(str, command)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "File too large. What is done is kept; the same command continues" in done.stderr
    assert [*tree(tmp_path / "out" / "rows")] == []
    assert not list((tmp_path / "out").rglob(".*"))
    scan(corpus)
    scan(corpus, to="whole")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


OTHER_KEY = Secret(b"another key, yes")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rule": Rule("fdr", 0.05)}, "another rule"),
        ({"columns": Columns("content")}, "another columns"),
        ({"keys": "other"}, "another keys"),
    ],
)
def test_other_settings_do_not_mix_with_a_scan_that_is_there(scan, corpus, key, changes, what):
    scan(corpus)
    if "keys" in changes:
        changes = {"keys": (WatermarkKey(OTHER_KEY, 0.5, key.tokenizer),)}
    with pytest.raises(InputError, match=f"holds a scan with {what}: give another folder"):
        scan(corpus, **changes)


def test_an_input_that_changed_does_not_mix_with_a_scan_that_is_there(scan, corpus):
    scan(corpus)
    with (corpus / "d.txt").open("a") as file:
        file.write("more")
    with pytest.raises(InputError, match="other input files, or they changed"):
        scan(corpus)


def test_a_folder_with_other_files_is_left_alone(scan, corpus, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not empty and holds no scan"):
        scan(corpus)
    assert [*tree(tmp_path / "out")] == ["thesis.txt"]


def test_a_damaged_manifest_is_refused(scan, corpus, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read: give another folder"):
        scan(corpus)


def test_two_scans_do_not_write_to_one_folder(scan, corpus, tmp_path):
    with (
        only_writer_in(tmp_path / "out"),
        pytest.raises(InputError, match="another run is writing"),
    ):
        scan(corpus)


def test_results_inside_the_input_folder_are_not_scanned(scan, corpus, tmp_path):
    first = scan(corpus, to="corpus/out")
    assert scan(corpus, to="corpus/out") == first


def test_hits_are_listed_for_whoever_has_no_pyarrow(scan, corpus, tmp_path, texts, key):
    scan(corpus)
    hits = list(read_hits(tmp_path / "out" / "hits.csv"))
    found = [row for row in rows(tmp_path / "out") if row["p_value"] < 1e-4]
    assert [(hit["path"], int(hit["row"]), hit["id"]) for hit in hits] == [
        (row["path"], row["row"], row["id"] or "") for row in found
    ]
    assert {hit["key_id"] for hit in hits} == {key.id}
    assert len(hits) == 8


def test_a_share_of_false_hits_finds_weak_marks_that_a_strict_rate_misses(
    scan, tmp_path, tokenizer, key
):
    """Eighteen words are too few for one in a million, and enough beside others like them."""
    short = [marked_text(key, tokenizer, 18, n) for n in range(13)]
    plain = [plain_text(tokenizer, 18, n) for n in range(40)]
    (tmp_path / "a.jsonl").write_bytes(lines([*short, *plain]))
    strict = scan(tmp_path / "a.jsonl", rule=Rule("fpr", 1e-6), to="strict")
    share = scan(tmp_path / "a.jsonl", rule=Rule("fdr", 0.01), to="share")
    assert strict["watermarked"] < share["watermarked"] == 13
    numbers = {int(hit["row"]) for hit in read_hits(tmp_path / "share" / "hits.csv")}
    assert numbers == set(range(1, 14))


def test_a_corpus_without_marks_has_no_hits(scan, tmp_path, tokenizer):
    texts = [plain_text(tokenizer, 60, n) for n in range(60)]
    (tmp_path / "a.jsonl").write_bytes(lines(texts))
    summary = scan(tmp_path / "a.jsonl")
    assert (summary["watermarked"], summary["largest_p_value"]) == (0, None)
    assert (tmp_path / "out" / "hits.csv").read_text().count("\n") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_strict_scan_stops_at_the_first_problem(scan, corpus, tmp_path, workers):
    with pytest.raises(InputError, match=r"a.jsonl:21: not a line of JSON"):
        scan(corpus / "a.jsonl", strict=True, workers=workers)
    assert scan(corpus / "a.jsonl")["errors"] == 2
    with pytest.raises(InputError, match=r"a.jsonl:21: not a line of JSON"):
        scan(corpus / "a.jsonl", strict=True)


def test_a_strict_scan_of_good_files_is_like_any_other(scan, corpus, tmp_path):
    assert scan(corpus / "b.jsonl.gz", strict=True)["documents"] == 7
    with pytest.raises(InputError, match=r"x.parquet: no column 'text'"):
        pq.write_table(pa.table({"other": ["x"]}), tmp_path / "x.parquet")
        scan(tmp_path / "x.parquet", to="x", strict=True)


def test_impossible_settings_are_refused(scan, corpus):
    with pytest.raises(InputError, match="worker"):
        scan(corpus, workers=0)


def test_progress_adds_up_to_all_bytes_and_documents(corpus, key, tmp_path):
    planned, told = [], []
    settings = ScanSettings((key,), RULE, Columns())
    Scan([str(corpus)], settings, tmp_path / "out", 3000).run(
        Engine(workers=1), lambda *plan: planned.append(plan), lambda *done: told.append(done)
    )
    size = sum(path.stat().st_size for path in corpus.iterdir())
    assert planned == [(size, 0)]
    assert (sum(size for size, _ in told), sum(count for _, count in told)) == (size, 30)


def test_nothing_secret_and_no_text_is_written(scan, corpus, tmp_path, key, texts):
    scan(corpus)
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()
    )
    for form in (key.secret.reveal(), key.secret.reveal().hex().encode()):
        assert form not in written
    assert not any(word.encode() in written for word in texts[1].split() if len(word) > 8)
