"""Fixtures for attacks: a chat server, and an endpoint that does not really wait."""

import pytest
from chat_server import ChatServer

from dllmark.attacks.endpoint import Endpoint


@pytest.fixture
def server(monkeypatch):
    """A chat server on this machine."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("DLLMARK_API_KEY", raising=False)
    running = ChatServer()
    yield running
    running.close()


@pytest.fixture
def waits():
    """How long the endpoint would have waited, wait by wait."""
    return []


@pytest.fixture
def endpoint(server, waits):
    """Make an endpoint for the server: no real waiting, no jitter unless asked for."""

    def make(**options):
        options = {"max_requests": 100, "sleep": waits.append, "jitter": lambda: 1.0, **options}
        return Endpoint(server.url, "some-model", **options)

    return make
