"""Writing the texts of an experiment, batch by batch, with one model on this machine."""

from __future__ import annotations

import os
import platform
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from dllmark.experiments.rivals.schemes import find_scheme
from dllmark.experiments.settings import Protocol, Setting
from dllmark.relation.key import WatermarkKey

if TYPE_CHECKING:
    from dllmark.models.families import Family
    from dllmark.models.loading import Model
    from dllmark.sampling.settings import Sampler

TextRecord = dict[str, Any]


SEEDS_APART = 1_000_000
"""The seed of a batch is its first prompt's number, and so far from that of the next key's."""


@dataclass(frozen=True)
class Batch:
    """Texts to write together. It holds the key, so it is never stored or printed.

    Its randomness follows from the number of its first prompt: whoever writes it, and whenever,
    writes the same on the same kind of device.
    """

    setting: Setting
    protocol: Protocol
    chat: bool
    key: WatermarkKey | None
    first: int
    prompts: tuple[str, ...]


class BatchWriter(typing.Protocol):
    """Writes batches, wherever it does so."""

    def write(self, batches: Sequence[Batch]) -> Iterator[list[TextRecord]]:
        """Yield the texts of each batch, in order, as soon as they are there."""

    @property
    def hardware(self) -> str:
        """What the texts that came so far were written on."""

    @property
    def dtype(self) -> str:
        """What the model that wrote them computes in."""


class LocalWriter:
    """Writes with a model on this machine, which is loaded for the first text.

    >>> writer = LocalWriter(lambda: load_model("embedded"))  # doctest: +SKIP
    """

    def __init__(self, load: Callable[[], Model]) -> None:
        self._load = load
        self._model: Model | None = None

    def write(self, batches: Sequence[Batch]) -> Iterator[list[TextRecord]]:
        """Write one batch after the other; the model is there before the first is asked for."""
        if not batches:
            return iter(())
        model = self._model = self._model or self._load()
        return (write_batch(model, batch) for batch in batches)

    @property
    def hardware(self) -> str:
        """The GPU or the processor."""
        return hardware(self._model) if self._model else ""

    @property
    def dtype(self) -> str:
        """The numbers of the model's weights."""
        return dtype(self._model) if self._model else ""


def write_batch(model: Model, batch: Batch) -> list[TextRecord]:
    """Return the texts of one batch as plain JSON values."""
    from dllmark.sampling.texts import generate

    setting, watermark = batch.setting, None
    if batch.key is not None and setting.strategy is not None:
        mark = find_scheme(setting.strategy).mark
        watermark = mark(batch.key, model.tokenizer, setting.delta, setting.temperature)
    texts = generate(
        model,
        batch.prompts,
        watermark,
        sampler_of(model.family, batch.protocol, setting),
        tokens=batch.protocol.tokens,
        chat=batch.chat,
        seed=batch.first + SEEDS_APART * setting.key,
        batch_size=len(batch.prompts),
    )
    return [text.to_dict() for text in texts]


def sampler_of(family: Family, protocol: Protocol, setting: Setting) -> Sampler:
    """Return the sampler of the setting's order, else the family's own.

    That is Dream's in the order its model card names for Dream, and LLaDA's else.
    """
    from dllmark.sampling.settings import Dream, DreamOrder, Llada, Llada2, LladaOrder, takes_apart

    shared: dict[str, Any] = {
        "temperature": setting.temperature, "suppress_end": protocol.suppress_end,
        "no_repeat_ngram": protocol.no_repeat_ngram,
    }  # fmt: skip
    if family.fixed.get("block_causal"):
        return Llada2(**shared)
    steps = protocol.tokens // setting.per_step
    order = setting.order or ("entropy" if family.name == "Dream" else "low_confidence")
    if order in get_args(DreamOrder):
        return Dream(steps, cast(DreamOrder, order), **shared)
    return Llada(
        steps, protocol.block, order=cast(LladaOrder, order), cache=protocol.cache,
        apart=protocol.apart and takes_apart(order), **shared,
    )  # fmt: skip


def hardware(model: Model) -> str:
    """Return what a model runs on: the name of the GPU, or of the processor."""
    import torch

    cuda = model.device.type == "cuda"
    return torch.cuda.get_device_name(model.device) if cuda else processor()


def dtype(model: Model) -> str:
    """Return what a model computes in, as `--dtype` takes it."""
    return str(model.transformer.embedding.weight.dtype).removeprefix("torch.")


def processor() -> str:
    """Return the name of this machine's processor, and how many cores it has."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return f"CPU {next(names, platform.machine())} ({os.cpu_count()} cores)"
