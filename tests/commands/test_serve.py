"""`dllmark serve` as it is started, used and ended."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import torch
from checkpoints import sdar_config, write_checkpoint
from serving import read_events

from dllmark.commands import serve as command
from dllmark.relation.key import TokenizerId, WatermarkKey


@pytest.fixture
def signals():
    """Put the handlers back that the command replaces."""
    kept = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in kept.items():
        signal.signal(each, handler)


class Client(threading.Thread):
    """Talks to a server that runs in the main thread, and ends it by a signal."""

    def __init__(self, url):
        super().__init__()
        self.url, self.events = url, []

    def run(self):
        body = {"prompt": "Write about a lighthouse.", "tokens": 32, "seed": 1, "stream": True}
        body |= {"delta": 12, "temperature": 1, "suppress_end": True}  # enough for a short text
        try:
            with httpx.stream("POST", f"{self.url}/v1/generate", json=body, timeout=60) as answer:
                for number, event in enumerate(read_events(answer)):
                    self.events.append(event)
                    if number == 3:
                        os.kill(os.getpid(), signal.SIGTERM)
        finally:
            if len(self.events) < 4:
                os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_finishes_the_text_that_is_written(run, key_file, monkeypatch, signals, one_core):
    """With the embedded model: a request, a text and its verdict, end to end."""
    torch.set_num_threads(2)
    listening = command._listen("127.0.0.1", 0)
    monkeypatch.setattr(command, "_listen", lambda host, port: listening)
    client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}")
    client.start()
    result = run("serve", "--port", 0, "--key", key_file)
    client.join()
    assert result.status == 0
    assert result.err.startswith(f"serving on {client.url} ")
    name, end = client.events[-1]
    assert (name, len(client.events)) == ("end", 34)
    assert end["detection"]["verdict"] == "watermarked"
    assert torch.get_num_threads() == 1


def test_the_program_answers_on_the_address_it_prints(key_file, tmp_path, marked):
    """Detection alone, in a process of its own, where torch is not needed."""
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-for-this-test\n")
    tokens.chmod(0o600)
    program = Path(sys.executable).with_name("dllmark")
    options = ["--model", "none", "--port", "0", "--token-file", tokens]
    with subprocess.Popen(
        [program, "serve", "--key", key_file, *options], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            url = process.stderr.readline().split()[2]
            headers = {"Authorization": "Bearer a-token-for-this-test"}
            body = {"text": marked}
            answer = httpx.post(f"{url}/v1/detect", json=body, headers=headers, timeout=60)
        finally:
            process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
    assert answer.json()["results"][0]["verdict"] == "watermarked"
    assert process.returncode == 0
    assert "POST /v1/detect 200" in log
    assert "a-token-for-this-test" not in log and marked[:20] not in log


REFUSED = {
    "an open address without tokens": (["--host", "0.0.0.0"], "give --token-file, or listen on"),
    "a name without tokens": (["--host", "example.org"], "can be reached from other machines"),
    "a limit": (["--max-batch", "0"], "the limit batch is at least 1"),
    "a rate": (["--fpr", "2"], "lies in (0, 1)"),
    "payloads of no length": (["--payload-bits", "21"], "a payload has 1 to 20 bits"),
    "two kinds of payloads": (
        ["--payload-bits", "8", "--payloads", "customers.txt"],
        "give --payload-bits or --payloads, not both",
    ),
    "a missing list of payloads": (["--payloads", "missing.txt"], "cannot read missing.txt"),
    "a missing token file": (["--token-file", "missing"], "cannot read the token file missing"),
    "a tokenizer beside a model": (
        ["--model", "embedded", "--tokenizer", "a.json"],
        "--tokenizer is for --model none",
    ),
    "a model": (["--model", "missing/model/here"], "there is no model missing/model/here"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=REFUSED)
def test_it_refuses_to_start_in_one_line(run, key_file, options, reason):
    model = [] if "--model" in options else ["--model", "none"]
    result = run("serve", "--port", 0, "--key", key_file, *model, *options)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert reason in result.err


def test_a_tokenizer_that_moved_can_be_pointed_to(run, key, tokenizer, tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr(command, "_run", lambda service, *_: served.append(service))
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    new.write_text(tokenizer.definition())
    moved = WatermarkKey(key.secret, key.gamma, TokenizerId(str(old), tokenizer.fingerprint))
    moved.save(tmp_path / "moved.key")
    options = ["--key", tmp_path / "moved.key", "--model", "none"]
    assert f"there is no tokenizer {old}" in run("serve", "--port", 0, *options).err
    assert run("serve", "--port", 0, *options, "--tokenizer", new).status == 0
    assert [service.tokenizer.name for service in served] == [str(new)]


def test_the_payloads_that_are_looked_for_are_chosen_at_the_start(
    run, key_file, tmp_path, monkeypatch
):
    served = []
    monkeypatch.setattr(command, "_run", lambda service, *_: served.append(service))
    (tmp_path / "customers.txt").write_text("acme\nglobex\n")
    for options in ([], ["--payload-bits", 8], ["--payloads", tmp_path / "customers.txt"]):
        assert run("serve", "--port", 0, "--key", key_file, "--model", "none", *options).status == 0
    assert [len(service.payloads) for service in served] == [65536, 256, 2]


def test_a_port_that_is_taken_is_told(run, key_file):
    with command._listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--key", key_file, "--model", "none", "--port", port)
    assert result.status == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in result.err


@pytest.fixture
def no_weights(monkeypatch):
    """Fails where the weights of a model are read."""
    monkeypatch.setattr("dllmark.models.loading.read_transformer", lambda *_: pytest.fail("read"))


@pytest.mark.usefixtures("no_weights")
def test_what_cannot_be_served_is_told_before_a_model_is_loaded(run, key_file, tmp_path):
    """A model of 8 billion parameters takes a minute."""
    with command._listen("127.0.0.1", 0) as taken:
        taken_port = run("serve", "--key", key_file, "--port", taken.getsockname()[1])
    assert "cannot listen on 127.0.0.1" in taken_port.err
    write_checkpoint(tmp_path, sdar_config())
    run("keygen", "-o", tmp_path / "k", "--model", tmp_path)
    other_sampler = run("serve", "--port", 0, "--key", tmp_path / "k", "--model", tmp_path)
    assert "is a SDAR model: write with `dllmark generate" in other_sampler.err.replace("\n", " ")
    other_key = run("serve", "--port", 0, "--key", tmp_path / "k", "--model", "embedded")
    assert "is for another tokenizer than embedded" in other_key.err
    assert {one.status for one in (taken_port, other_sampler, other_key)} == {2}


def test_without_the_extra_it_says_what_to_install(run, key_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run("serve", "--port", 0, "--key", key_file)
    assert (result.status, result.out) == (2, "")
    assert result.err == "error: serving needs uvicorn: pip install 'dllmark[serve]'\n"
