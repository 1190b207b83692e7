"""Fixtures that run the command line in this process, and the files it is run on."""

import io
import json
import math
import sys
from dataclasses import dataclass, replace
from importlib import import_module

import pytest
import torch
from chat_server import ChatServer
from samples import marked_text, plain_text

from dllmark.commands.cli import main
from dllmark.relation.key import Secret, WatermarkKey


@pytest.fixture(autouse=True)
def _silence(monkeypatch):
    """Let long work say nothing of its progress: how long it takes here is no matter of a test."""
    monkeypatch.setattr("dllmark.terminal.SILENCE", math.inf)


@dataclass
class Result:
    """What a run of the command line left."""

    status: int
    out: str
    err: str

    @property
    def records(self):
        """The lines of JSON it printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self):
        """The only line of JSON it printed."""
        [record] = self.records
        return record


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line with arguments and standard input."""
    monkeypatch.delenv("DLLMARK_KEY", raising=False)

    def run(*arguments, stdin=""):
        content = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "argv", ["dllmark", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        with pytest.raises(SystemExit) as exited:
            main()
        out, err = capsys.readouterr()
        return Result(exited.value.code or 0, out, err)

    return run


@pytest.fixture
def key_file(key, tmp_path):
    """The file of the fixed key."""
    key.save(tmp_path / "my.key")
    return tmp_path / "my.key"


@pytest.fixture
def other_key_file(tokenizer, tmp_path):
    """The file of another fixed key, which marked nothing."""
    WatermarkKey(Secret(b"another 16 bytes"), 0.5, tokenizer.id).save(tmp_path / "other.key")
    return tmp_path / "other.key"


@pytest.fixture(scope="session")
def marked(key, tokenizer):
    """200 words that the fixed key has marked."""
    return marked_text(key, tokenizer)


@pytest.fixture(scope="session")
def plain(tokenizer):
    """200 words that no key has marked."""
    return plain_text(tokenizer)


@pytest.fixture(scope="module")
def one_core():
    """Use one torch thread: several wait for each other where the cores have other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def texts(key, tokenizer):
    """20 texts of 60 words, every fifth marked with the fixed key."""
    return [
        marked_text(key, tokenizer, 60, n) if n % 5 == 0 else plain_text(tokenizer, 60, n)
        for n in range(20)
    ]


@pytest.fixture
def corpus(tmp_path, texts):
    """A folder with those texts in files of every kind."""
    from corpora import make_corpus

    return make_corpus(tmp_path / "corpus", texts)


@pytest.fixture
def chat_server(monkeypatch):
    """A chat server on this machine."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("DLLMARK_API_KEY", raising=False)
    running = ChatServer()
    yield running
    running.close()


@pytest.fixture(scope="module")
def endless(small_tokenizer):
    """A small model whose texts never end early."""
    from tiny import tiny_model

    torch.set_num_threads(1)
    torch._C._set_mkldnn_enabled(False)  # oneDNN prepares longer than such small products take
    yield replace(tiny_model(small_tokenizer), end_ids=())
    torch._C._set_mkldnn_enabled(True)


@pytest.fixture
def loaded_models(endless, monkeypatch):
    """The names of the models that are loaded: each is the endless one."""
    import_module("dllmark.detection.payload")  # imported later, it would keep the patch
    loaded = []
    load = "dllmark.models.loading.load_model"
    monkeypatch.setattr(load, lambda source, device, dtype="auto": loaded.append(source) or endless)
    tokenizer = "dllmark.relation.tokenizer.load_tokenizer"
    monkeypatch.setattr(tokenizer, lambda source: endless.tokenizer)
    monkeypatch.setattr("dllmark.models.loading.read_family", lambda source: endless.family)
    return loaded


@pytest.fixture
def scan_environment(monkeypatch):
    """Undo at the end what a scan in this process says to the tokenizers."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of two cores on this machine: starting one takes longer than its tests."""
    ray = pytest.importorskip("ray", reason="pip install 'dllmark[ray]'")
    ray.init(
        address="local", num_cpus=2, num_gpus=0, include_dashboard=False,
        object_store_memory=100 << 20, log_to_driver=False, logging_level="ERROR",
    )  # fmt: skip
    yield
    ray.shutdown()


def pytest_collection_modifyitems(items):
    """Put the tests that share the Ray cluster last, so that it disturbs no others."""
    items.sort(key=lambda item: "ray_cluster" in getattr(item, "fixturenames", ()))
