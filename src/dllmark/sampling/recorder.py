"""A step recorded once and replayed: at small batches a GPU waits longer for orders than it works.

An 8B model has some thousand small kernels in a step. Launched one by one from Python they take
about twice as long as the GPU needs for them; as one CUDA graph they take what the GPU needs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch


class Recorder:
    """Runs a piece of work on fixed tensors; on a GPU from its third time on as a CUDA graph.

    The work must read and write the same tensors each time and never wait for the GPU. Its first
    run is an ordinary one, which loads kernels; its second is recorded. On a CPU, or if not
    `enabled`, every run is an ordinary one. `generators` are all that the work draws from.

    >>> total = torch.zeros(())
    >>> recorder = Recorder(torch.Generator())
    >>> for _ in range(3):
    ...     recorder.run("add", lambda: total.add_(1))
    >>> total.item()
    3.0
    """

    def __init__(self, *generators: torch.Generator, enabled: bool = True) -> None:
        self._generators, self._device = generators, generators[0].device
        self._enabled = enabled and self._device.type == "cuda"
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._enabled else None
        self._stream: torch.cuda.Stream | None = None
        if self._enabled:  # torch would record on the current device, which need not be the model's
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call, unused-ignore]

    def run(self, key: Hashable, work: Callable[[], object]) -> None:
        """Do the work that goes by this key."""
        if not self._enabled or key not in self._graphs:
            self._graphs[key] = None
            work()
            return
        graph = self._graphs[key] or self._record(work)
        self._graphs[key] = graph
        graph.replay()

    def _record(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Record the work without doing it."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        assert self._stream is not None
        # torch sets the noise back on the stream that records; a replay must come after that
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph
