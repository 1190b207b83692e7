"""Paraphrase by a model behind an OpenAI-compatible endpoint.

httpx sends the requests and tenacity repeats them. It is one kind of request, so no client of an
API is needed: such a client sends what it finds in its own environment variables to any endpoint,
and its repeats cannot be counted against a budget.
"""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from dllmark.errors import DllmarkError, InputError, require
from dllmark.files import check_unicode

if TYPE_CHECKING:
    import httpx
    from tenacity import RetryCallState

PROMPT = (
    "Please paraphrase the following text while preserving its meaning. "
    "Output only the rewritten text, nothing else:\n\n{text}"
)
"""The paper's prompt (its appendix on the paraphrasing attack)."""

ATTEMPTS = 6
LONGEST_WAIT = 60.0
"""Seconds between two attempts at most; an endpoint may ask for up to ten times as much."""

PASSING = (408, 409, 425, 429)
"""Answers that mean: later. So does every 5xx."""

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


class _TextRefusedError(Exception):
    """A text gets no paraphrase, however often it is asked for."""


class _TryAgainError(Exception):
    """A request brought nothing, but the next may, `after` so many seconds at least."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


@dataclass
class Endpoint:
    """Where a model answers, its name there, and what it may cost.

    `url` ends before `/chat/completions`. `max_requests` counts every request, repeated ones
    included. A wait is longer than planned by `jitter` seconds at most. `sleep` and `now` are there
    to be replaced in tests.

    >>> Endpoint("http://localhost:8000/v1", "my-model", max_requests=100).address
    'http://localhost:8000/v1/chat/completions'
    """

    url: str
    model: str
    max_requests: int
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    jitter: float = 1.0
    sleep: Callable[[float], None] | None = None
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        require("paraphrasing", "eval", "httpx", "tenacity")
        check_url(self.url, self.api_key)
        if self.api_key and not all("!" <= character <= "~" for character in self.api_key):
            raise EndpointError("the API key holds a line end or another character keys never have")
        if self.max_requests < 1:
            raise EndpointError(f"at least 1 request is needed; got {self.max_requests}")
        if not 0 < self.timeout < float("inf"):
            raise EndpointError(f"the timeout is a number of seconds above 0; got {self.timeout}")
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
        with self._client() as client, ThreadPoolExecutor(concurrency) as pool:
            try:
                while True:
                    if not problem:
                        for number, text in islice(waiting, concurrency - len(running)):
                            running[pool.submit(self._one, client, text)] = number
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
                        if isinstance(result, GivenUp) and in_a_row == FAILURES_IN_A_ROW:
                            problem = problem or EndpointError(
                                f"{in_a_row} texts in a row got no paraphrase, the last because "
                                f"{result.reason}"
                            )
                            self._stopped.set()
            finally:
                self._stopped.set()
        if problem:
            raise problem

    def _client(self) -> httpx.Client:
        import httpx

        return httpx.Client(
            headers={"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
            timeout=self.timeout,
            limits=httpx.Limits(max_connections=None),  # `concurrency` decides
            follow_redirects=False,  # another host must not get the key
        )

    def _one(self, client: httpx.Client, text: str) -> str | GivenUp:
        """Return the paraphrase of one text, with as many requests as there is hope for."""
        import tenacity

        if not text.strip():
            return text  # nothing to paraphrase, and nothing to pay for
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TryAgainError),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=self._wait,
            sleep=self.sleep or tenacity.sleep_using_event(self._stopped),
            reraise=True,
        )
        try:
            return retrying(self._request, client, text)
        except _TextRefusedError as error:
            return GivenUp(str(error))
        except _TryAgainError as error:
            return GivenUp(f"{error}, {ATTEMPTS} times")

    def _wait(self, state: RetryCallState) -> float:
        """Return how long to wait: 1, 2, 4 … seconds, or longer where Retry-After says so."""
        from tenacity import wait_exponential_jitter

        assert state.outcome is not None
        error = state.outcome.exception()
        after = error.after if isinstance(error, _TryAgainError) else 0.0
        return max(after, wait_exponential_jitter(1, LONGEST_WAIT, jitter=self.jitter)(state))

    def _request(self, client: httpx.Client, text: str) -> str:
        """Make one request, and return what the model wrote."""
        import httpx

        self._count()
        message = {"role": "user", "content": PROMPT.format(text=text)}
        try:
            response = client.post(self.address, json={"model": self.model, "messages": [message]})
        except httpx.ConnectError as error:
            raise _TryAgainError(f"the endpoint cannot be reached ({error})") from None
        except httpx.RequestError as error:
            reason = type(error).__name__
            raise _TryAgainError(f"the endpoint did not answer ({reason})") from None
        if response.is_success:
            return _paraphrase_in(response)
        status = response.status_code
        if status in PASSING or response.is_server_error:
            after = self._retry_after(response.headers.get("Retry-After", ""))
            if after > 10 * LONGEST_WAIT:
                raise EndpointError(f"the endpoint asks to wait {after:.0f} s: run again then")
            raise _TryAgainError(f"it answered {status}", after)
        if status in AT_FAULT:
            raise _TextRefusedError(f"it answered {status}")
        hint = {401: ": check the API key", 403: ": check the API key", 404: ": check --endpoint"}
        raise EndpointError(f"the endpoint answered {status}{hint.get(status, '')}")

    def _count(self) -> None:
        """Count a request that is about to be made; raise where there may be no more."""
        with self._lock:
            if self._stopped.is_set():
                raise EndpointError("the run was stopped")
            if self.requests >= self.max_requests:
                raise EndpointError(
                    f"all {self.max_requests} requests of --max-requests are used: "
                    "run again to continue"
                )
            self.requests += 1

    def _retry_after(self, value: str) -> float:
        """Return the seconds that Retry-After asks for: a number, or a date."""
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - self.now())
        except (ValueError, TypeError, OverflowError):
            return 0.0


def check_url(url: str, api_key: str | None) -> None:
    """Raise `EndpointError` for an address that no request, or no API key, should go to."""
    import httpx

    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL("")
    if parts.scheme not in ("http", "https") or not parts.host:
        raise EndpointError("an endpoint starts with http:// or https:// and names a host")
    if parts.userinfo or parts.query or parts.fragment:
        raise EndpointError("an endpoint is a plain URL: no user, password or query in it")
    local = parts.host in ("localhost", "127.0.0.1", "::1")
    if api_key and parts.scheme == "http" and not local:
        raise EndpointError("an API key is sent over https only: unset it, or use https")


def _paraphrase_in(response: httpx.Response) -> str:
    """Return the text in a chat completion."""
    try:
        choice: Any = response.json()["choices"][0]
        text, end = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _TryAgainError("it answered without a chat completion") from None
    if end in ("length", "content_filter"):
        raise _TextRefusedError(f"the model stopped early ({end})")
    if not isinstance(text, str) or not text.strip():
        raise _TryAgainError("the model wrote nothing")
    try:
        check_unicode(text)
    except InputError:
        raise _TryAgainError("the model wrote half a character") from None
    return text.strip()
