"""How fast `dllmark serve` detects: requests a second and how long one takes, idle and busy.

Starts the server as a user does, with the embedded model, and asks it over HTTP with 1, 8 and 64
connections, while nothing is written and while a text is; then with 64 texts in a request. Then
10,000 requests more, with the server's memory before and after. Every answer is compared with the
library's own.

Usage: python benchmarks/serve.py [--requests N] [--soak N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from hardware import describe

from dllmark import Detector, Tokenizer, WatermarkKey, load_tokenizer

CLIENTS = (1, 8, 64)
BATCH = 64
WORDS = 300


@dataclass(frozen=True)
class Row:
    """One measurement."""

    clients: int
    writing: bool
    texts: int
    requests: int
    lost: int
    per_second: float
    p50_ms: float
    p99_ms: float


class Connection:
    """One kept-alive HTTP connection; a client library would cost more than the server."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, path: str, body: bytes) -> bytes:
        """Send a request and return the body of its answer, which must be a 200."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        fields = await self._reader.readuntil(b"\r\n\r\n")
        if not fields.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(fields.splitlines()[0].decode())
        length = re.search(rb"content-length: (\d+)", fields, re.IGNORECASE)
        assert length, "a detection is not streamed"
        return await self._reader.readexactly(int(length[1]))


@contextmanager
def server(key: Path):  # type: ignore[no-untyped-def]
    """Run `dllmark serve`; yield its port and process."""
    program = Path(sys.executable).with_name("dllmark")
    options = ["--port", "0", "--max-per-minute", "100000000"]
    with subprocess.Popen(
        [program, "serve", "--key", key, *options], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        port = int(process.stderr.readline().split()[2].rpartition(":")[2])
        drain = asyncio.get_running_loop().run_in_executor(None, process.stderr.read)
        try:
            yield port, process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            drain.cancel()
    assert process.returncode == 0, "the server ends well"


async def ask(
    port: int, clients: int, requests: int, texts: list[str], green: list[int], batch: int = 1
) -> list[float]:
    """Send requests over some connections; check every answer, and return how long each took."""
    parts = [slice(first, first + batch) for first in range(0, len(texts), batch)]
    bodies = [json.dumps({"text": texts[part]}).encode() for part in parts]
    times: list[float] = []
    left = iter(range(requests))

    async def client() -> None:
        async with Connection(port) as connection:
            for number in left:
                which = number % len(bodies)
                start = time.perf_counter()
                answer = await connection.post("/v1/detect", bodies[which])
                times.append(time.perf_counter() - start)
                results = json.loads(answer)["results"]
                assert [result["green"] for result in results] == green[parts[which]]

    await asyncio.gather(*(client() for _ in range(clients)))
    return times


@contextmanager
def writing(port: int, active: bool):  # type: ignore[no-untyped-def]
    """Keep the server writing one text after the other."""

    async def write() -> None:
        body = json.dumps({"prompt": "Write a story.", "tokens": 256}).encode()
        async with Connection(port) as connection:
            while True:
                await connection.post("/v1/generate", body)

    task = asyncio.ensure_future(write()) if active else None
    yield
    if task:
        assert not task.done(), "the text is still being written"
        task.cancel()


async def measure(port: int, requests: int, texts: list[str], green: list[int]) -> list[Row]:
    """Return a row for each number of clients, idle and busy, and for requests of many texts."""
    await ask(port, 8, 200, texts, green)
    rows = []
    for active, clients, batch in (
        *((active, clients, 1) for active in (False, True) for clients in CLIENTS),
        (False, 8, BATCH),
        (True, 8, BATCH),
    ):
        count = max(100, requests // batch)
        with writing(port, active):
            start = time.perf_counter()
            times = await ask(port, clients, count, texts, green, batch)
            rate = count * batch / (time.perf_counter() - start)
        cuts = statistics.quantiles(times, n=100)
        lost = count - len(times)
        rows.append(
            Row(clients, active, batch, count, lost, rate, 1000 * cuts[49], 1000 * cuts[98])
        )
    return rows


def resident_mb(pid: int) -> float:
    """Return the memory of a process that lies in RAM."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident
    return int(resident[1]) / 1024


def sample_texts(tokenizer: Tokenizer, count: int = 128) -> list[str]:
    """Make texts of random words."""
    random = np.random.default_rng(0)
    ordinary = np.flatnonzero(tokenizer.scored)[256:]
    return [tokenizer.decode(random.choice(ordinary, WORDS)) for _ in range(count)]


async def run(requests: int, soak: int) -> dict[str, object]:
    """Measure everything."""
    tokenizer = load_tokenizer("embedded")
    key = WatermarkKey.generate(tokenizer.id)
    texts = sample_texts(tokenizer)
    green = [detection.green for detection in Detector(key, tokenizer).detect_many(texts)]
    with tempfile.TemporaryDirectory() as folder:
        key.save(Path(folder) / "key")
        with server(Path(folder) / "key") as (port, process):
            rows = await measure(port, requests, texts, green)
            before = resident_mb(process.pid)
            memory, answered = [], 0
            for _ in range(4):
                answered += len(await ask(port, 8, soak // 4, texts, green))
                memory.append(resident_mb(process.pid))
    return {
        "ran": describe(),
        "rows": [asdict(row) for row in rows],
        "soak requests": 4 * (soak // 4),
        "soak lost": 4 * (soak // 4) - answered,
        "memory before": before,
        "memory after each quarter": memory,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="for each row")
    parser.add_argument("--soak", type=int, default=10_000, help="for the memory")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = asyncio.run(run(arguments.requests, arguments.soak))
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['ran']}; texts of {WORDS} tokens\n")
    print("clients  generation  texts a request  requests  lost  detections/s   p50 ms   p99 ms")
    for row in (Row(**values) for values in result["rows"]):  # type: ignore[attr-defined]
        busy = "runs" if row.writing else "none"
        print(
            f"{row.clients:7}  {busy:>10}  {row.texts:15}  {row.requests:8}  {row.lost:4}  "
            f"{row.per_second:12,.0f}  {row.p50_ms:7.1f}  {row.p99_ms:7.1f}"
        )
    after = ", ".join(f"{value:.0f}" for value in result["memory after each quarter"])  # type: ignore[attr-defined]
    print(
        f"\n{result['soak requests']:,} requests more: memory {result['memory before']:.0f} MB "
        f"before, then {after} MB after each quarter, "
        f"{result['soak lost']} lost"
    )


if __name__ == "__main__":
    main()
