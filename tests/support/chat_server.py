"""A chat server on this machine that answers, or misbehaves as told."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dllmark.attacks.endpoint import PROMPT

Behaviour = Callable[[BaseHTTPRequestHandler, str], None]


def completion(text: str | None, **choice: Any) -> bytes:
    """Return the body of a chat completion."""
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"message": message, **choice}]}).encode()


def send(status: int = 200, body: bytes = b"", **headers: str) -> Behaviour:
    """Answer with a status, a body and headers (Retry_After is Retry-After)."""

    def behave(handler: BaseHTTPRequestHandler, text: str) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return behave


def answer(handler: BaseHTTPRequestHandler, text: str) -> None:
    """Answer as one should: with the text in capitals."""
    send(body=completion(f" {text.upper()}\n", finish_reason="stop"))(handler, text)


def reset(handler: BaseHTTPRequestHandler, text: str) -> None:
    """Reset the connection."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def half(handler: BaseHTTPRequestHandler, text: str) -> None:
    """Promise more than is sent."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(completion(text))
    handler.close_connection = True


class ChatServer:
    """Behaves as told request by request, then answers; remembers what it was asked."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = []
        self.texts: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = body["messages"][0]["content"].removeprefix(PROMPT.format(text=""))
                with outer._lock:
                    outer.texts.append(text)
                    outer.bodies.append({"path": self.path, **body})
                    outer.headers.append(dict(self.headers))
                    behave = outer.behaviours.pop(0) if outer.behaviours else answer
                behave(self, text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # a client that left is part of the tests
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def will(self, *behaviours: Behaviour) -> None:
        """Say how to behave in the next requests."""
        self.behaviours += behaviours

    def hang(self, handler: BaseHTTPRequestHandler, text: str) -> None:
        """Answer nothing until the test is over."""
        self.released.wait()

    def close(self) -> None:
        """Stop."""
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def collected(results: Iterable[tuple[int, Any]]) -> dict[int, Any]:
    """Return results by number, each of which may come once."""
    by_number: dict[int, Any] = {}
    for number, result in results:
        assert number not in by_number
        by_number[number] = result
    return by_number
