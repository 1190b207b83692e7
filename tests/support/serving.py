"""Real servers in a thread, and a model small enough to write in milliseconds."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import torch
from prometheus_client.parser import text_string_to_metric_families

from dllmark.commands.serve import _listen, make_server
from dllmark.models.families import EMBEDDED
from dllmark.models.loading import Model
from dllmark.models.transformer import Config, Transformer
from dllmark.server.service import Service

PAD, END, MASK = 0, 1, 2


def tiny_model(tokenizer):
    """A transformer with random weights for the embedded tokenizer."""
    config = Config(
        vocab_size=tokenizer.vocab_size, width=16, layers=1, heads=2, kv_heads=2, mlp_width=32,
        max_length=512,
    )  # fmt: skip
    transformer = Transformer(config).requires_grad_(False).eval()
    random = torch.Generator().manual_seed(0)
    for name, parameter in transformer.named_parameters():
        if "norm" not in name:
            parameter.normal_(0, 0.5, generator=random)
    ends = tuple(int(tokenizer.encode(token)[0]) for token in EMBEDDED.ends)
    mask = int(tokenizer.encode(EMBEDDED.mask)[0])
    return Model("tiny", EMBEDDED, transformer, tokenizer, mask, ends, ends[0])


@dataclass
class Served:
    """A running server: its address, a client for it, and what it is made of."""

    url: str
    client: httpx.Client
    service: Service

    def post(self, path, **body):
        return self.client.post(path, json=body)

    def detect(self, text, **options):
        """The only result of a detection that must succeed."""
        response = self.post("/v1/detect", text=text, **options)
        assert response.status_code == 200, response.text
        [result] = response.json()["results"]
        return result

    def metric(self, name, **labels):
        """The value of a metric."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        [value] = [
            sample.value for family in families for sample in family.samples
            if (sample.name, sample.labels) == (name, labels)
        ]  # fmt: skip
        return value

    def events(self, **body):
        """All events of a streamed generation, as (name, data)."""
        with self.client.stream("POST", "/v1/generate", json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            return list(read_events(response))


@contextmanager
def serving(service, tokens=None, **client_options):
    """Run a server on a free port; requests may be sent at once, the socket listens already."""
    listening = _listen("127.0.0.1", 0)
    server = make_server(service, tokens)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=60, **client_options) as client:
            yield Served(url, client, service)
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        server.force_exit = True  # a browser may keep a connection open for ever
        thread.join()


def read_events(response):
    """Yield the (name, data) of server-sent events, by the rules of their specification."""
    name, data = "message", []
    for line in response.iter_lines():
        field, _, value = line.partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        if field == "data":
            data.append(value.removeprefix(" "))
        if not line:
            if data:  # else there were only comments
                yield name, json.loads("\n".join(data))
            name, data = "message", []


class Gate:
    """Lets a model take one step at a time, or go on freely."""

    def __init__(self, model):
        self._steps = threading.Semaphore(0)
        self._open = False
        self.arrived = threading.Semaphore(0)
        self.passed = 0
        self._hook = model.transformer.register_forward_pre_hook(self._wait)

    def _wait(self, *_):
        self.arrived.release()
        if not self._open:
            assert self._steps.acquire(timeout=60)
        self.passed += 1

    def wait_for_model(self):
        """Return once the model stands before its next step."""
        assert self.arrived.acquire(timeout=60)

    def let(self, steps=1):
        self._steps.release(steps)

    def open(self):
        self._open = True
        self._steps.release(1000)

    def remove(self):
        self.open()
        self._hook.remove()
