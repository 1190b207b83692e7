"""Generation beside the event loop: one text is written at a time, a few requests wait.

The model runs in a thread of its own. Its steps come back to the event loop as they are made, and
a generation that is cancelled ends after the step it is at.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

from dllmark.server.metrics import Metrics
from dllmark.server.refusal import too_many

if TYPE_CHECKING:
    from dllmark.marking.watermark import Watermark
    from dllmark.models.loading import Model
    from dllmark.relation.key import WatermarkKey
    from dllmark.sampling.settings import Llada
    from dllmark.sampling.texts import Generation, Step


@dataclass(frozen=True)
class GenerateArguments:
    """What `dllmark.generate` is called with, and the key: a text ends with that it began with."""

    prompts: list[str]
    key: WatermarkKey
    watermark: Watermark | None
    sampler: Llada
    tokens: int
    chat: bool
    seed: int
    compare: bool = False
    """Whether the only prompt is also answered without the mark, in the same batch."""


@dataclass(frozen=True)
class Waiting:
    """How many generations come first, and how far the one that runs is, from 0 to 1."""

    ahead: int
    progress: float


QueueEvent: TypeAlias = Union[Waiting, "Step", list["Generation"], Exception]


class Stopped(Exception):  # noqa: N818 - it is no error
    """Raised inside a generation that nobody waits for any more."""


class QueuedGeneration:
    """A generation that waits or runs: its steps, then its texts. It has a place until it ends."""

    def __init__(self, queue: GenerationQueue, arguments: GenerateArguments) -> None:
        self._queue = queue
        self._arguments = arguments
        self._events: asyncio.Queue[QueueEvent] = asyncio.Queue()
        self._stop = threading.Event()
        self._outcome = "cancelled"
        self._task = asyncio.get_running_loop().create_task(self._wait_and_run())
        self._task.add_done_callback(self._leave)  # also where it is cancelled before it starts

    async def steps(self) -> AsyncIterator[Waiting | Step | list[Generation]]:
        """Yield what it waits for, each step as it is made, and last the texts."""
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
        raise AssertionError("a generation ends with its texts or raises")

    def tell(self, event: QueueEvent) -> None:
        """Add to what `steps` yields; called on the event loop."""
        self._events.put_nowait(event)

    def cancel(self) -> None:
        """Give up the place in the queue, or end after the step it is at; never too late."""
        self._stop.set()
        if self._queue.running is not self:
            self._task.cancel()

    async def _wait_and_run(self) -> None:
        """Wait for the turn, write, and tell how it ended."""
        queue = self._queue
        try:
            async with queue.turn:
                queue.running = self
                try:
                    texts = await asyncio.get_running_loop().run_in_executor(
                        queue.thread, self._generate
                    )
                finally:
                    queue.running = None
            self._outcome = "finished"
            queue.metrics.tokens.inc(sum(len(text.ids) for text in texts))
            self.tell(texts)
        except Stopped:
            pass
        except Exception as error:
            self._outcome = "failed"
            self.tell(error)

    def _leave(self, _: asyncio.Task[None]) -> None:
        """Free the place in the queue."""
        self._queue.metrics.generations.labels(self._outcome).inc()
        queue = self._queue
        queue.progress = 0.0 if queue.pending[0] is self else queue.progress
        queue.pending.remove(self)
        queue.tell_waiting()

    def _made(self, step: Step) -> None:
        """Tell of a step, also those who wait for the last one."""
        self.tell(step)
        self._queue.progress = step.number / (step.total or step.number)
        self._queue.tell_waiting()

    def _generate(self) -> list[Generation]:
        """Write the texts, in the model's thread."""
        from dllmark.sampling.texts import generate, generate_both

        loop = self._task.get_loop()

        def on_step(step: Step) -> None:
            if self._stop.is_set():
                raise Stopped
            loop.call_soon_threadsafe(self._made, step)

        arguments = self._arguments
        self._queue.on_start(arguments)
        start = time.monotonic()
        if arguments.compare:
            assert arguments.watermark is not None
            texts = list(generate_both(
                self._queue.model, arguments.prompts[0], arguments.watermark, arguments.sampler,
                tokens=arguments.tokens, chat=arguments.chat, seed=arguments.seed, on_step=on_step,
            ))  # fmt: skip
        else:
            texts = generate(
                self._queue.model, arguments.prompts, arguments.watermark, arguments.sampler,
                tokens=arguments.tokens, chat=arguments.chat, seed=arguments.seed,
                batch_size=len(arguments.prompts), on_step=on_step,
            )  # fmt: skip
        self._queue.last_seconds = time.monotonic() - start
        return texts


class GenerationQueue:
    """The model and the generations for it: one runs, `waiting` more may wait, in their order.

    `on_start` is told, in the model's thread, what begins to be written.
    """

    def __init__(
        self,
        model: Model,
        waiting: int,
        metrics: Metrics,
        on_start: Callable[[GenerateArguments], None],
    ) -> None:
        self.model = model
        self.on_start = on_start
        self.metrics = metrics
        self.waiting = waiting
        self.turn = asyncio.Lock()
        self.thread = ThreadPoolExecutor(1, "generation")
        self.pending: list[QueuedGeneration] = []
        self.running: QueuedGeneration | None = None
        self.last_seconds = 1.0
        self.progress = 0.0
        metrics.pending.set_function(lambda: len(self.pending))

    def start(self, arguments: GenerateArguments) -> QueuedGeneration:
        """Take a place for a generation, or refuse it where none is left."""
        if len(self.pending) > self.waiting:
            seconds = max(1, round(self.last_seconds * len(self.pending)))
            raise too_many(
                "queue_full",
                f"{len(self.pending)} generations run or wait, which is the most: try again in "
                f"about {seconds} seconds",
                seconds,
            )
        generation = QueuedGeneration(self, arguments)
        self.pending.append(generation)
        if len(self.pending) > 1:
            generation.tell(Waiting(len(self.pending) - 1, self.progress))
        return generation

    def tell_waiting(self) -> None:
        """Tell those who wait how far the first one is."""
        for ahead, generation in enumerate(self.pending[1:], 1):
            generation.tell(Waiting(ahead, self.progress))

    def close(self) -> None:
        """End what still runs after its step, and the thread."""
        for generation in list(self.pending):
            generation.cancel()
        self.thread.shutdown()
