"""Paraphrase by a model behind an OpenAI-compatible endpoint.

Only the standard library is needed: it is one kind of request, and `urllib` can be kept from
following redirects, which would carry the API key to another host.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from email.message import Message
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from dllmark.errors import DllmarkError

PROMPT = (
    "Please paraphrase the following text while preserving its meaning. "
    "Output only the rewritten text, nothing else:\n\n{text}"
)
"""The paper's prompt (its appendix on the paraphrasing attack)."""

ATTEMPTS = 6
LONGEST_WAIT = 60.0
"""Seconds between two attempts at most; an endpoint may ask for up to ten times as much."""

AT_FAULT = (400, 413, 422)
"""Answers that mean this text cannot be worked on: others may still be."""

FAILURES_IN_A_ROW = 5
"""So many texts given up one after another mean that it is not the texts."""


class EndpointError(DllmarkError):
    """An endpoint refuses, does not answer, or has cost as much as it may."""


@dataclass(frozen=True)
class GivenUp:
    """Why a text has no paraphrase."""

    reason: str


@dataclass(frozen=True)
class _Failure:
    """Why a request brought nothing, whether to ask `again`, and how long to wait at least."""

    reason: str
    again: bool = True
    after: float = 0.0


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect."""


@dataclass
class Endpoint:
    """Where to ask, which model, and what it may cost.

    `url` ends before `/chat/completions`. `max_requests` counts every request, repeated ones
    included. `sleep`, `now` and `jitter` are there to be replaced in tests.

    >>> Endpoint("http://localhost:8000/v1", "my-model", max_requests=100).address
    'http://localhost:8000/v1/chat/completions'
    """

    url: str
    model: str
    max_requests: int
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    sleep: Callable[[float], object] | None = None
    now: Callable[[], float] = time.time
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointError("an endpoint starts with http:// or https:// and names a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise EndpointError("an endpoint is a plain URL: no user, password or query in it")
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if self.api_key and parts.scheme == "http" and not local:
            raise EndpointError("an API key is sent over https only: unset it, or use https")
        if self.api_key and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise EndpointError("the API key holds a line end or another character keys never have")
        if self.max_requests < 1:
            raise EndpointError(f"at least 1 request is needed; got {self.max_requests}")
        self._opener = urllib.request.build_opener(_Stay)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.requests = 0

    @property
    def address(self) -> str:
        """The full address of the requests."""
        return self.url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"

    def paraphrase(
        self, texts: Iterable[str], concurrency: int = 8
    ) -> Iterator[tuple[int, str | GivenUp]]:
        """Yield each text's number, from 0, and its paraphrase or why it has none, as they come.

        When the endpoint refuses, is out of order, or has had all the requests it may have,
        `EndpointError` is raised, after the answers to requests under way were yielded.
        """
        if concurrency < 1:
            raise EndpointError(f"at least 1 request at a time is needed; got {concurrency}")
        waiting = enumerate(texts)
        running: dict[Future[str | GivenUp], int] = {}
        problem: EndpointError | None = None
        in_a_row = 0
        self._stopped.clear()
        with ThreadPoolExecutor(concurrency) as pool:
            try:
                while True:
                    if not problem:
                        for number, text in islice(waiting, concurrency - len(running)):
                            running[pool.submit(self._one, text)] = number
                    if not running:
                        break
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        number = running.pop(future)
                        try:
                            result = future.result()
                        except EndpointError as error:
                            problem = problem or error
                            self._stopped.set()
                            continue
                        yield number, result
                        in_a_row = in_a_row + 1 if isinstance(result, GivenUp) else 0
                        if in_a_row == FAILURES_IN_A_ROW and not problem:
                            problem = EndpointError(f"{in_a_row} texts in a row got no paraphrase")
                            self._stopped.set()
            finally:
                self._stopped.set()
        if problem:
            raise problem

    def _one(self, text: str) -> str | GivenUp:
        """Return the paraphrase of one text, asking again while there is hope."""
        if not text.strip():
            return text  # nothing to paraphrase, and nothing to pay for
        reason = ""
        for attempt in range(ATTEMPTS):
            answer = self._ask(text)
            if isinstance(answer, str):
                return answer
            reason = answer.reason
            if not answer.again:
                return GivenUp(reason)
            if answer.after > 10 * LONGEST_WAIT:
                raise EndpointError(
                    f"the endpoint asks to wait {answer.after:.0f} s: run again then"
                )
            if attempt + 1 < ATTEMPTS:
                backoff = min(LONGEST_WAIT, 2.0**attempt) * (0.5 + self.jitter() / 2)
                (self.sleep or self._stopped.wait)(max(backoff, answer.after))
        return GivenUp(f"{reason}, {ATTEMPTS} times")

    def _ask(self, text: str) -> str | _Failure:
        """Make one request, and return what the model wrote."""
        with self._lock:
            if self._stopped.is_set():
                raise EndpointError("the run was stopped")
            if self.requests >= self.max_requests:
                raise EndpointError(
                    f"all {self.max_requests} requests of --max-requests are used: "
                    "run again to continue"
                )
            self.requests += 1
        message = {"role": "user", "content": PROMPT.format(text=text)}
        body = json.dumps({"model": self.model, "messages": [message]}).encode()
        request = urllib.request.Request(self.address, body, self._headers())  # noqa: S310 - checked
        try:
            with self._opener.open(request, timeout=self.timeout) as response:
                return _answer(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return self._failure(error.code, error.headers)
        except urllib.error.URLError as error:
            return _Failure(f"the endpoint cannot be reached ({error.reason})")
        except (OSError, http.client.HTTPException) as error:
            return _Failure(f"the connection broke ({type(error).__name__})")

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers

    def _failure(self, status: int, headers: Message) -> _Failure:
        """Return what an HTTP error means for a text; raise where it means the end of the run."""
        if status in (408, 409, 425, 429) or status >= 500:
            return _Failure(f"it answered {status}", after=self._retry_after(headers))
        if status in AT_FAULT:
            return _Failure(f"it answered {status}", again=False)
        hint = {401: ": check the API key", 403: ": check the API key", 404: ": check --endpoint"}
        raise EndpointError(f"the endpoint answered {status}{hint.get(status, '')}")

    def _retry_after(self, headers: Message) -> float:
        """Return the seconds that Retry-After asks for: a number, or a date."""
        value = headers.get("Retry-After", "")
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - self.now())
        except (ValueError, TypeError, OverflowError):
            return 0.0


def _answer(content: bytes) -> str | _Failure:
    """Return the text in a chat completion."""
    try:
        choice = json.loads(content)["choices"][0]
        text, end = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return _Failure("it answered without a chat completion")
    if end in ("length", "content_filter"):
        return _Failure(f"the model stopped early ({end})", again=False)
    if not isinstance(text, str) or not text.strip():
        return _Failure("the model wrote nothing")
    if any("\ud800" <= character <= "\udfff" for character in text):
        return _Failure("the model wrote half a character")
    return text.strip()
