"""On a real Ray cluster, a scan gives the bytes that it gives on one machine."""

import io
import json
import os
import signal
import threading

import failing
import pytest
from corpora import FIXED_TIME, badly_named, lines, rows, tree
from failing import FAILURE, Failing
from processes import feed, make_pipe, open_when_read, reader_of

from dllmark.cluster import Engine
from dllmark.errors import DllmarkError
from dllmark.scan import on_ray
from dllmark.scan.plan import Piece, Shard
from dllmark.scan.reading import Columns
from dllmark.scan.rule import Rule
from dllmark.scan.run import Scan
from dllmark.scan.work import ScanSettings, scan_shard

ray = pytest.importorskip("ray", reason="pip install 'dllmark[ray]'")

# Ray's own code opens files, sockets and processes that it leaves to the end of the process.
pytestmark = [
    pytest.mark.usefixtures("nothing_drawn"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # Ray sets options that it has itself deprecated.
    pytest.mark.filterwarnings("ignore:`use_\\w+` is deprecated:DeprecationWarning"),
]


@pytest.fixture
def scan(key, tmp_path):
    def scan(*inputs, engine, to, shard_bytes=6000, **changes):
        settings = ScanSettings(**{"keys": (key,), "rule": Rule(), "columns": Columns(), **changes})
        whole = Scan([str(path) for path in inputs], settings, tmp_path / to, shard_bytes)
        return whole.run(engine)

    return scan


def test_both_engines_give_the_same_files(ray_cluster, scan, corpus, tmp_path):
    local = scan(corpus, engine=Engine(workers=1), to="local")
    assert scan(corpus, engine=Engine("ray"), to="ray") == local
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


def test_a_scan_that_one_engine_began_is_finished_by_the_other(ray_cluster, scan, corpus, tmp_path):
    scan(corpus, engine=Engine(workers=1), to="local")
    scan(corpus, engine=Engine(workers=1), to="both")
    (tmp_path / "both" / "rows" / "part-000001.parquet").unlink()
    scan(corpus, engine=Engine("ray", workers=1), to="both")
    assert tree(tmp_path / "both") == tree(tmp_path / "local")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc and named pipes")
def test_the_shard_of_a_killed_worker_is_read_again(ray_cluster, scan, tmp_path, texts):
    pipe = make_pipe(tmp_path / "a.jsonl")

    def kill_then_feed():
        writing_end = open_when_read(pipe)
        first = reader_of(pipe)
        os.kill(first, signal.SIGKILL)
        reader_of(pipe, but=first)
        feed(writing_end, lines(texts))

    helper = threading.Thread(target=kill_then_feed, daemon=True)
    helper.start()
    assert scan(pipe, engine=Engine("ray"), to="out")["documents"] == len(texts)
    helper.join()
    assert [row["row"] for row in rows(tmp_path / "out")] == [*range(1, len(texts) + 1)]


def test_a_strict_scan_stops_and_says_where(ray_cluster, scan, corpus):
    either = r"a.jsonl:21: not a line of JSON|c.parquet:3: the text is null"  # who is first
    with pytest.raises(DllmarkError, match=either):
        scan(corpus, engine=Engine("ray"), to="out", strict=True)


def test_an_input_that_cannot_be_read_on_a_node_is_named(ray_cluster, key, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("x")

    def replace_by_a_folder(total, done):
        path.unlink()
        path.mkdir()

    settings = ScanSettings((key,), Rule(), Columns())
    with pytest.raises(DllmarkError, match=r"cannot scan .*a.jsonl: Is a directory"):
        Scan([str(path)], settings, tmp_path / "out").run(Engine("ray"), replace_by_a_folder)


def test_a_node_sends_back_the_files_that_this_machine_would_write(key, tmp_path, texts):
    (tmp_path / "a.jsonl").write_bytes(lines([*texts, 17]))
    settings, shard = (
        ScanSettings((key,), Rule(), Columns()),
        Shard(3, (Piece(str(tmp_path / "a.jsonl")),)),
    )
    written, errors = io.BytesIO(), io.BytesIO()
    scan_shard(shard, settings, settings.scorer(), written, errors)
    item = {"index": 3, "pieces": json.dumps(shard.packed())}
    assert on_ray._scan(item, settings) == {
        "index": 3,
        "documents": len(texts),
        "failure": "",
        "rows": written.getvalue(),
        "errors": errors.getvalue(),
    }
    strict = ScanSettings((key,), Rule(), Columns(), strict=True)
    assert "a.jsonl:21: neither an object" in on_ray._scan(item, strict)["failure"]


def test_an_unexpected_error_on_a_node_is_shown_as_what_it_is(ray_cluster, key, tmp_path):
    (tmp_path / "a.jsonl").write_text('"words"')
    settings = Failing((key,), Rule(), Columns())
    ray.cloudpickle.register_pickle_by_value(failing)  # nodes do not have the tests
    with pytest.raises(DllmarkError, match=FAILURE):
        Scan([str(tmp_path / "a.jsonl")], settings, tmp_path / "out").run(Engine("ray"))


def test_a_name_that_is_not_utf8_is_scanned_on_a_node_too(ray_cluster, scan, tmp_path, texts):
    badly_named(tmp_path / "in", texts[0])
    scan(tmp_path / "in", engine=Engine(workers=1), to="local")
    scan(tmp_path / "in", engine=Engine("ray"), to="ray")
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


def test_time_is_not_in_the_result(ray_cluster, scan, tmp_path, texts):
    path = tmp_path / "b.jsonl"
    path.write_bytes(lines(texts))
    os.utime(path, (FIXED_TIME, FIXED_TIME))
    scan(path, engine=Engine("ray"), to="one")
    scan(path, engine=Engine("ray"), to="two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
