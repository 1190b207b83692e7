"""On a real Ray cluster, an experiment writes the texts that it writes on one machine."""

import json
import os
import shutil
import signal

import pytest
from checkpoints import llada_config, write_checkpoint

from dllmark.cluster import Engine
from dllmark.errors import DllmarkError, InputError
from dllmark.experiments.batches import LocalWriter
from dllmark.experiments.lab import Lab
from dllmark.experiments.on_ray import RayWriter, _shares
from dllmark.experiments.settings import Dataset, Protocol, Setting
from dllmark.marking.strategies import STRATEGIES
from dllmark.models.loading import load_model
from dllmark.relation.tokenizer import load_tokenizer

ray = pytest.importorskip("ray", reason="pip install 'dllmark[ray]'")

# Ray's own code opens files, sockets and processes that it leaves to the end of the process.
pytestmark = [
    pytest.mark.usefixtures("one_core"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PROTOCOL = Protocol(samples=7, tokens=16, scored=10, block=8, most_repeats=1.0)
DATASET = Dataset("C4", [f"The list {number}" for number in range(7)], ["green"] * 7, False)
MARKED = Setting("predictive-bidirectional", temperature=0.8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a small model of random weights."""
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder, llada_config(max_sequence_length=160))
    return str(folder)


@pytest.fixture(scope="module")
def written(model, tmp_path_factory):
    """The texts as this machine writes them."""
    folder = tmp_path_factory.mktemp("local")
    lab_in(folder, model, LocalWriter(lambda: load_model(model))).complete([MARKED])
    return folder


@pytest.fixture
def local(written, tmp_path):
    """Those texts, and a lab with the same keys in another folder."""
    shutil.copytree(written / "keys", tmp_path / "ray" / "keys")
    return written


def lab_in(folder, model, writer, **options):
    tokenizer = load_tokenizer(model)
    return Lab(model, tokenizer, [DATASET], folder, PROTOCOL, writer, batch_size=2, **options)


def texts(folder):
    return {path.name: path.read_text() for path in folder.glob("texts/C4/*.jsonl")}


def test_both_engines_write_the_same_texts(ray_cluster, model, local, tmp_path):
    with RayWriter(model, Engine("ray", 2)) as writer:
        lab = lab_in(tmp_path / "ray", model, writer)
        lab.complete([MARKED])
    assert len(texts(local)) == 2
    assert texts(tmp_path / "ray") == texts(local)
    assert {note.hardware for note in lab.notes([MARKED])} <= {
        f"{count} × {load_local(local)}, Ray" for count in (1, 2)
    }


def load_local(folder):
    """What the notes of a local run say it ran on."""
    return json.loads((folder / "runs.jsonl").read_text().splitlines()[0])["hardware"]


def test_a_worker_that_is_killed_is_replaced_and_its_batch_written_again(
    ray_cluster, model, local, tmp_path
):
    with RayWriter(model, Engine("ray", 1)) as writer:
        told = []

        def kill_once(name, done, total):
            if not told:
                os.kill(pid, signal.SIGKILL)
            told.append(done)

        lab = lab_in(tmp_path / "ray", model, writer, on_batch=kill_once)
        writer._start()
        pid = ray.get(writer._workers[0].__ray_call__.remote(lambda self: os.getpid()))
        lab.complete([MARKED])
    assert texts(tmp_path / "ray") == texts(local)
    assert told == [2, 4, 6, 7, 9, 11, 13, 14]


def test_a_run_that_is_cut_off_is_finished_by_the_other_engine(ray_cluster, model, local, tmp_path):
    def stop(name, done, total):
        if done >= 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), RayWriter(model) as writer:
        lab_in(tmp_path / "ray", model, writer, on_batch=stop).complete([MARKED])
    [unmarked, marked] = sorted(texts(tmp_path / "ray").items(), reverse=True)
    assert (unmarked[1].count("\n"), marked[1].count("\n")) == (7, 2)
    lab_in(tmp_path / "ray", model, LocalWriter(lambda: load_model(model))).complete([MARKED])
    assert texts(tmp_path / "ray") == texts(local)


def test_what_fails_on_a_worker_is_told_without_the_secret(ray_cluster, model, tmp_path):
    lab = lab_in(tmp_path, model, None)
    secret = lab.key(0.5).secret.reveal()
    no_model = pytest.raises(DllmarkError, match="there is no model /nowhere")
    with no_model as told, RayWriter("/nowhere") as lab.writer:
        lab.complete([MARKED])
    assert secret.hex() not in str(told.value)
    [batch, *_] = lab._batches(lab._read(DATASET, MARKED))
    object.__setattr__(batch, "prompts", (7,))  # no text: an error that nobody foresaw
    failed = pytest.raises(DllmarkError, match=r"^Ray could not finish: .* is kept")
    with failed as told, RayWriter(model) as writer:
        list(writer.write([batch]))
    assert secret.hex() not in str(told.value)
    assert repr(secret) not in str(told.value)


def test_the_command_writes_on_the_cluster(ray_cluster, run, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c4.jsonl").write_text('{"text": "The grass is green."}\n' * 3)
    small = ["--c4", "c4.jsonl", "--samples", 3, "--tokens", 32, "--scored", 10, "--out", "out"]
    result = run("reproduce", "lengths", *small, "--model", model, "--engine", "ray", "--json")
    assert result.status == 0, result.err
    assert result.json["about"]["texts"].startswith(f"{3 * (len(STRATEGIES) + 1)} texts in ")
    assert ", Ray, torch " in result.json["about"]["texts"]


def test_workers_that_the_cluster_has_no_place_for_are_refused(ray_cluster, model):
    refused = pytest.raises(InputError, match="the cluster has 2 cores, too few for 3 workers")
    with refused, RayWriter(model, Engine("ray", 3)) as writer:
        writer.write([None])


@pytest.mark.parametrize(
    ("machines", "workers", "expected"),
    [
        ([{"CPU": 8, "GPU": 4}, {"CPU": 8, "GPU": 4}], None, (8, {"num_cpus": 1, "num_gpus": 1})),
        ([{"CPU": 8, "GPU": 4}], 2, (2, {"num_cpus": 1, "num_gpus": 1})),
        ([{"CPU": 8}, {"CPU": 4}, {}], None, (2, {"num_cpus": 4, "num_gpus": 0})),
        ([{"CPU": 8}, {"CPU": 4}], 5, (5, {"num_cpus": 1, "num_gpus": 0})),
    ],
)
def test_each_worker_gets_a_gpu_or_a_share_of_the_cores(machines, workers, expected):
    nodes = [{"Alive": True, "Resources": one} for one in machines]
    gone = {"Alive": False, "Resources": {"CPU": 99, "GPU": 99}}
    assert _shares([*nodes, gone], workers) == expected


def test_a_gpu_is_never_shared():
    nodes = [{"Alive": True, "Resources": {"CPU": 8, "GPU": 1}}]
    with pytest.raises(InputError, match="the cluster has 1 GPUs, too few for 2 workers"):
        _shares(nodes, 2)
