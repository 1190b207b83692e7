"""Writing texts on a Ray cluster: the same batches, shared out among workers with a model each."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dllmark.cluster import Engine, cluster
from dllmark.errors import DllmarkError, InputError
from dllmark.experiments.batches import Batch, TextRecord, dtype, hardware, write_batch

if TYPE_CHECKING:
    from dllmark.models.loading import Model

RAY = Engine("ray")
RESTARTS = 3
"""How often a worker that dies is replaced, and its batch written again."""

AHEAD = 2
"""Batches a worker has in hand: it starts the next one while the last travels."""


class RayWriter:
    """Writes with several workers, each with a model on a GPU of its own, or on the CPU.

    The key goes to a worker with each batch and never into its definition, which Ray stores.
    """

    def __init__(self, source: str, engine: Engine = RAY) -> None:
        self._source, self._engine = source, engine
        self._workers: list[Any] = []
        self._seen: dict[int, str] = {}
        self._dtypes: dict[int, str] = {}
        self._open = ExitStack()

    def __enter__(self) -> RayWriter:
        return self

    def __exit__(self, *raised: Any) -> bool | None:
        """Send the workers away, and leave the cluster."""
        return self._open.__exit__(*raised)

    def write(self, batches: Sequence[Batch]) -> Iterator[list[TextRecord]]:
        """Give each worker the next batch when it is done with one."""
        if batches and not self._workers:
            self._start()
        return self._in_order(batches)

    def _start(self) -> None:
        """Join the cluster; its workers load the model when their first batch comes."""
        self._open.enter_context(cluster(self._engine.address))
        import ray

        api: Any = ray  # its types are incomplete
        count, needs = _shares(api.nodes(), self._engine.workers)
        remote = api.remote(
            **needs, max_restarts=RESTARTS, max_task_retries=RESTARTS, scheduling_strategy="SPREAD"
        )(_WritingActor)
        for _ in range(count):
            self._workers.append(remote.remote(self._source))
            self._open.callback(api.kill, self._workers[-1])

    @property
    def hardware(self) -> str:
        """How many workers wrote on what."""
        kinds = Counter(self._seen.values())
        return " and ".join(f"{count} × {kind}" for kind, count in kinds.items()) + ", Ray"

    @property
    def dtype(self) -> str:
        """What the workers' models compute in."""
        return " and ".join(sorted(set(self._dtypes.values())))

    def _in_order(self, batches: Sequence[Batch]) -> Iterator[list[TextRecord]]:
        """Yield results in the order of the batches; those that are early wait here."""
        import ray

        waiting = iter(enumerate(batches))
        running: dict[Any, tuple[int, int]] = {}
        early: dict[int, list[TextRecord]] = {}

        def give(worker: int) -> None:
            for number, batch in waiting:
                running[self._workers[worker].write.remote(batch)] = (worker, number)
                break

        for _ in range(AHEAD):
            for worker in range(len(self._workers)):
                give(worker)
        turn = 0
        while running:
            [ready], _ = ray.wait(list(running))
            worker, number = running.pop(ready)
            failure, seen, numbers, early[number] = ray.get(ready)
            self._seen[worker], self._dtypes[worker] = seen, numbers
            if failure:
                raise DllmarkError(failure)
            give(worker)
            while turn in early:
                yield early.pop(turn)
                turn += 1


class _WritingActor:
    """One process of the cluster, with the model it writes with."""

    def __init__(self, source: str) -> None:
        self._source = source

    def write(self, batch: Batch) -> tuple[str, str, str, list[TextRecord]]:
        """Return why it failed, if so, what it was written on and in, and the texts."""
        try:
            model = self._model
            return "", hardware(model), dtype(model), write_batch(model, batch)
        except DllmarkError as error:
            return str(error), "", "", []

    @functools.cached_property
    def _model(self) -> Model:
        from dllmark.models.loading import load_model

        return load_model(self._source)


def _shares(nodes: list[dict[str, Any]], workers: int | None) -> tuple[int, dict[str, float]]:
    """Return how many workers there are, and what each takes.

    That is a GPU each where there are some. Else the cores are shared out: a worker on each machine
    if no number is given, since one uses all cores.

    >>> _shares([{"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}], None)
    (2, {'num_cpus': 1, 'num_gpus': 1})
    >>> _shares([{"Alive": True, "Resources": {"CPU": 8.0}}] * 2, 4)
    (4, {'num_cpus': 4, 'num_gpus': 0})
    """
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = sum(int(one.get("GPU", 0)) for one in resources)
    cores = [int(one["CPU"]) for one in resources if one.get("CPU")]
    count = workers or gpus or len(cores)
    most, kind = (gpus, "GPUs") if gpus else (sum(cores), "cores")
    if not most or count > most:
        raise InputError(f"the cluster has {most} {kind}, too few for {count or 1} workers")
    if gpus:
        return count, {"num_cpus": 1, "num_gpus": 1}
    return count, {"num_cpus": max(1, min(cores) // math.ceil(count / len(cores))), "num_gpus": 0}
