"""Generation beside the event loop: one text is written at a time, a few requests wait.

The model runs in a thread of its own. Its steps come back to the event loop as they are made, and
a writing that is cancelled ends after the step it is at.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dllmark.server.metrics import Metrics
from dllmark.server.refusal import too_many

if TYPE_CHECKING:
    from dllmark.marking.watermark import Watermark
    from dllmark.models.loading import Model
    from dllmark.sampling import Generation, Llada, Step


@dataclass(frozen=True)
class Job:
    """One generation: what `dllmark.generate` is called with."""

    prompts: list[str]
    watermark: Watermark | None
    sampler: Llada
    tokens: int
    chat: bool
    seed: int


class Stopped(Exception):  # noqa: N818 - it is no error
    """Raised inside a generation that nobody waits for any more."""


class Writing:
    """A job under way: its steps, then its texts. It holds a place in the queue until it ends."""

    def __init__(self, writer: Writer, job: Job) -> None:
        self._writer = writer
        self._job = job
        self._events: asyncio.Queue[Step | list[Generation] | Exception] = asyncio.Queue()
        self._stop = threading.Event()
        self._outcome = "cancelled"
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._leave)  # also where it is cancelled before it starts

    async def steps(self) -> AsyncIterator[Step | list[Generation]]:
        """Yield each step as it is made, and last the texts."""
        while True:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, list):
                return

    async def texts(self) -> list[Generation]:
        """Wait for the texts."""
        async for event in self.steps():
            if isinstance(event, list):
                return event
        raise AssertionError("a writing ends with its texts or raises")

    def cancel(self) -> None:
        """Give up the place in the queue, or end the writing after its step; never too late."""
        self._stop.set()
        if self._writer.current is not self:
            self._task.cancel()

    async def _work(self) -> None:
        """Wait for the turn, write, and tell how it ended."""
        writer = self._writer
        try:
            async with writer.turn:
                writer.current = self
                try:
                    texts = await asyncio.get_running_loop().run_in_executor(
                        writer.thread, self._write
                    )
                finally:
                    writer.current = None
            self._outcome = "finished"
            writer.metrics.tokens += sum(len(text.ids) for text in texts)
            self._events.put_nowait(texts)
        except Stopped:
            pass
        except Exception as error:
            self._outcome = "failed"
            self._events.put_nowait(error)

    def _leave(self, _: asyncio.Task[None]) -> None:
        """Free the place in the queue."""
        self._writer.metrics.generations[self._outcome] += 1
        self._writer.held.discard(self)

    def _write(self) -> list[Generation]:
        """Write the texts, in the model's thread."""
        from dllmark.sampling import generate

        loop = self._task.get_loop()

        def on_step(step: Step) -> None:
            if self._stop.is_set():
                raise Stopped
            loop.call_soon_threadsafe(self._events.put_nowait, step)

        job = self._job
        start = time.monotonic()
        texts = generate(
            self._writer.model, job.prompts, job.watermark, job.sampler,
            tokens=job.tokens, chat=job.chat, seed=job.seed, batch_size=len(job.prompts),
            on_step=on_step,
        )  # fmt: skip
        self._writer.last_seconds = time.monotonic() - start
        return texts


class Writer:
    """The model and the queue before it: one writing runs, `waiting` more may wait."""

    def __init__(self, model: Model, waiting: int, metrics: Metrics) -> None:
        self.model = model
        self.metrics = metrics
        self.waiting = waiting
        self.turn = asyncio.Lock()
        self.thread = ThreadPoolExecutor(1, "writer")
        self.held: set[Writing] = set()
        self.current: Writing | None = None
        self.last_seconds = 1.0

    def start(self, job: Job) -> Writing:
        """Take a place for a job, or refuse it where none is left."""
        if len(self.held) > self.waiting:
            seconds = max(1, round(self.last_seconds * len(self.held)))
            raise too_many(
                "queue_full",
                f"{len(self.held)} generations run or wait, which is the most: try again in about "
                f"{seconds} seconds",
                seconds,
            )
        writing = Writing(self, job)
        self.held.add(writing)
        return writing

    def close(self) -> None:
        """End what still runs after its step, and the thread."""
        for writing in list(self.held):
            writing.cancel()
        self.thread.shutdown()
