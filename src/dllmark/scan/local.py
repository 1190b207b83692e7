"""Scan on this machine: a process for each core, replaced when it dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from dllmark.errors import DllmarkError, InputError
from dllmark.scan.plan import Shard
from dllmark.scan.scoring import Scorer
from dllmark.scan.work import Job, OnProgress, errors_path, rows_path, scan_into

ATTEMPTS = 3
"""How often a shard may lose its worker before the scan gives up."""


def scan_here(folder: Path, shards: Iterable[Shard], job: Job, on_progress: OnProgress) -> None:
    """Scan shards in this process, one after the other."""
    scorer = job.scorer()
    for shard in shards:
        _scan(folder, shard, job, scorer, on_progress)


def scan_in_processes(
    folder: Path, shards: Iterable[Shard], job: Job, on_progress: OnProgress, workers: int
) -> None:
    """Scan shards in some processes; the shard of one that dies goes to a new one."""
    waiting = deque(shards)
    attempts: dict[int, int] = {}
    running: list[_Worker] = []
    try:
        while waiting or any(worker.shard for worker in running):
            while waiting and len(running) < workers:
                running.append(_Worker(folder, job))
            for worker in running:
                if waiting and worker.shard is None:
                    worker.give(waiting.popleft())
            for worker in _ready(running):
                if worker.listen(on_progress):
                    continue
                running.remove(worker)  # it died
                lost = worker.shard
                if lost is None:
                    raise DllmarkError("a worker ended while it had nothing to do")
                clean(folder, lost)
                attempts[lost.index] = attempts.get(lost.index, 0) + 1
                if attempts[lost.index] == ATTEMPTS:
                    raise DllmarkError(
                        f"{ATTEMPTS} workers in a row were killed while they read "
                        f"{lost.pieces[0].path} (memory may be short: use fewer --workers, or "
                        "leave that file out). What is done is kept; the same command continues"
                    )
                waiting.appendleft(lost)
    finally:
        for worker in running:
            worker.stop()


def clean(folder: Path, shard: Shard) -> None:
    """Remove what a killed worker left of a shard."""
    for path in (rows_path(folder, shard), errors_path(folder, shard)):
        for left in path.parent.glob(f".{path.name}.*"):
            left.unlink(missing_ok=True)


def _scan(folder: Path, shard: Shard, job: Job, scorer: Scorer, on_progress: OnProgress) -> None:
    try:
        scan_into(folder, shard, job, scorer, on_progress)
    except OSError as error:
        raise InputError(
            f"cannot scan {shard.pieces[0].path} into {folder}: {error.strerror or error}. "
            "What is done is kept; the same command continues"
        ) from None


class _Worker:
    """A process that scans one shard after the other, and the one it has in hand."""

    def __init__(self, folder: Path, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=_work, args=(theirs, folder, job), daemon=True
        )
        self._process.start()
        theirs.close()
        self.shard: Shard | None = None

    def give(self, shard: Shard) -> None:
        self.shard = shard
        with suppress(BrokenPipeError):  # it died: `listen` will say so
            self._connection.send(shard)

    def listen(self, on_progress: OnProgress) -> bool:
        """Take a message from the process; return False where it is dead."""
        try:
            message = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self.stop()
            return False
        if isinstance(message, DllmarkError):
            raise message
        if message is None:
            self.shard = None
        else:
            on_progress(*message)
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _ready(workers: list[_Worker]) -> list[_Worker]:
    """Wait until a worker says something or is dead, and return those."""
    ready = wait([worker._connection for worker in workers])
    return [worker for worker in workers if worker._connection in ready]


def _work(connection: Connection, folder: Path, job: Job) -> None:
    """Scan the shards that come, until the process that sends them is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        scorer = job.scorer()
        while True:
            _scan(folder, connection.recv(), job, scorer, lambda *done: connection.send(done))
            connection.send(None)
    except DllmarkError as error:
        connection.send(error)


def _end_with_parent() -> None:
    """End this process at once when its parent is gone, so that nothing writes behind its back."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
