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
from dllmark.scan.work import (
    CONTINUES,
    OnProgress,
    ScanSettings,
    errors_path,
    rows_path,
    scan_into,
    unexpected_error,
)

ATTEMPTS = 3
"""How often a shard may lose its worker before the scan gives up."""

EXIT_SECONDS = 10
"""How long a worker that closed its connection may take to end by itself."""


def scan_here(
    folder: Path, shards: Iterable[Shard], settings: ScanSettings, on_progress: OnProgress
) -> None:
    """Scan shards in this process, one after the other."""
    scorer = settings.scorer()
    for shard in shards:
        _scan(folder, shard, settings, scorer, on_progress)


def scan_in_processes(
    folder: Path,
    shards: Iterable[Shard],
    settings: ScanSettings,
    on_progress: OnProgress,
    workers: int,
) -> None:
    """Scan shards in some processes; the shard of one that dies goes to a new one."""
    waiting = deque(shards)
    attempts: dict[int, int] = {}
    running: list[_ScanProcess] = []
    try:
        while waiting or any(worker.shard for worker in running):
            while waiting and len(running) < workers:
                running.append(_ScanProcess(folder, settings))
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
                    raise _lost(lost, worker.status)
                waiting.appendleft(lost)
    finally:
        for worker in running:
            worker.stop()


def _lost(shard: Shard, status: int) -> DllmarkError:
    """Return what is said of a shard whose workers all died; a negative status is a signal's."""
    how, hint = f"ended with status {status}", ""
    if status < 0:
        how, hint = "were killed", " (memory may be short: use fewer --workers, or leave it out)"
    return DllmarkError(
        f"{ATTEMPTS} workers in a row {how} while they read {shard.files}{hint}. {CONTINUES}"
    )


def clean(folder: Path, shard: Shard) -> None:
    """Remove what a killed worker left of a shard."""
    for path in (rows_path(folder, shard), errors_path(folder, shard)):
        for left in path.parent.glob(f".{path.name}.*"):
            left.unlink(missing_ok=True)


def _scan(
    folder: Path, shard: Shard, settings: ScanSettings, scorer: Scorer, on_progress: OnProgress
) -> None:
    try:
        scan_into(folder, shard, settings, scorer, on_progress)
    except OSError as error:
        raise InputError(
            f"cannot scan {shard.files} into {folder}: {error.strerror or error}. {CONTINUES}"
        ) from None


class _ScanProcess:
    """A process that scans one shard after the other, and the one it has in hand."""

    def __init__(self, folder: Path, settings: ScanSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=_work, args=(theirs, folder, settings), daemon=True
        )
        self._process.start()
        theirs.close()
        self.shard: Shard | None = None
        self.status = 0

    def give(self, shard: Shard) -> None:
        self.shard = shard
        with suppress(BrokenPipeError):  # it died: `listen` will say so
            self._connection.send(shard)

    def listen(self, on_progress: OnProgress) -> bool:
        """Take a message from the process; return False where it is dead."""
        try:
            message = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(EXIT_SECONDS)
            self.stop()
            self.status = self._process.exitcode or 0
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


def _ready(workers: list[_ScanProcess]) -> list[_ScanProcess]:
    """Wait until a worker says something or is dead, and return those."""
    ready = wait([worker._connection for worker in workers])
    return [worker for worker in workers if worker._connection in ready]


def _work(connection: Connection, folder: Path, settings: ScanSettings) -> None:
    """Scan the shards that come, until the process that sends them is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    scorer = None
    while True:
        shard = connection.recv()
        try:
            scorer = scorer or settings.scorer()
            _scan(folder, shard, settings, scorer, lambda *done: connection.send(done))
        except DllmarkError as error:
            connection.send(error)
        except Exception as error:
            connection.send(unexpected_error(error, shard))
        else:
            connection.send(None)


def _end_with_parent() -> None:
    """End this process at once when its parent is gone, so that nothing writes behind its back."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
