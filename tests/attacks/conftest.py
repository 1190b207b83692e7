"""Fixtures for attacks: a chat server, and an endpoint that does not really wait."""

import pytest

from dllmark.attacks.endpoint import Endpoint


@pytest.fixture
def waits():
    """How long the endpoint would have waited, wait by wait."""
    return []


@pytest.fixture
def endpoint(chat_server, waits):
    """Make an endpoint for the server: no real waiting, no jitter unless asked for."""

    def make(**options):
        options = {"max_requests": 100, "sleep": waits.append, "jitter": 0.0, **options}
        return Endpoint(chat_server.url, "some-model", **options)

    return make
