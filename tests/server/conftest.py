"""A server that all tests may ask, and parts for those that need their own."""

import logging
from contextlib import ExitStack

import pytest
from browsing import launched, opened
from serving import Gate, serving, tiny_model

from dllmark.relation.key import Secret, WatermarkKey
from dllmark.server.service import Service


@pytest.fixture(scope="module", autouse=True)
def on_one_core(one_core):
    """All these tests write with a small model, next to a server and a browser."""


@pytest.fixture(scope="session")
def model(tokenizer):
    """A model with random weights."""
    return tiny_model(tokenizer)


@pytest.fixture(scope="session")
def other_key(tokenizer):
    """A second key for the same tokenizer."""
    return WatermarkKey(Secret(b"another 16 bytes"), 0.25, tokenizer.id)


@pytest.fixture(scope="session")
def server(key, tokenizer, model):
    """A server with the fixed key and the tiny model."""
    with serving(Service([key], tokenizer, model)) as served:
        yield served


@pytest.fixture
def start():
    """Start a server of a service; it runs until the test is over."""
    with ExitStack() as running:
        yield lambda *parts, **options: running.enter_context(serving(*parts, **options))


@pytest.fixture
def serve(start, tokenizer, model):
    """Start a server with parts of one's own."""

    def serve(keys, *, with_model=True, tokens=None, headers=None, **options):
        service = Service(keys, tokenizer, model if with_model else None, **options)
        return start(service, tokens, headers=headers)

    return serve


@pytest.fixture
def gate(model):
    """Holds the tiny model before its next step."""
    gate = Gate(model)
    yield gate
    gate.remove()


@pytest.fixture
def logged(caplog):
    """What the server logs."""
    caplog.set_level(logging.DEBUG)
    return caplog


@pytest.fixture(scope="module")
def browser():
    """A browser for the tests of a file."""
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser, server):
    """The page of that server, once it knows what the server can do."""
    with opened(browser, server.url) as page:
        page.wait_for_selector("html[data-ready]", state="attached")
        yield page
