"""From prompts to texts: batches, padding, the loop, and what remains of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from torch import Tensor

from dllmark.errors import DllmarkError, MismatchError
from dllmark.marking.watermark import Watermark
from dllmark.relation.tokenizer import Ids
from dllmark.sampling.canvas import Canvas
from dllmark.sampling.loop import OtherMark, denoise
from dllmark.sampling.settings import (
    TOKENS,
    Llada,
    Llada2,
    Parallel,
    Sampler,
    check_length,
    check_strategy,
    steps_for,
)

if TYPE_CHECKING:
    from dllmark.models.loading import Model

LLADA = Llada()


@dataclass(frozen=True)
class Generation:
    """One text: its prompt, what was written, and whose mark it carries.

    `ids` are the tokens up to the end of the text. `known_left` is the share of them whose left
    neighbour was already revealed when they were chosen: 1 for a text written left to right.

    >>> Generation("Hi", " there", [904], None, 1.0).to_dict()["text"]
    ' there'
    """

    prompt: str
    text: str
    ids: list[int]
    watermark: dict[str, Any] | None
    known_left: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Step:
    """A batch after one step of the loop.

    number            which step it was, from 1
    total             how many there will be; None where the text decides
    tokens    [B, L]  padding, prompts, text so far, masks
    revealed  [B, L]  False where the model has yet to write
    start             where the prompts end

    >>> show = lambda step: print(step.number, int(step.revealed[:, step.start:].sum()))
    >>> generate(model, ["Hello"], on_step=show)  # doctest: +SKIP
    """

    number: int
    total: int | None
    tokens: Tensor
    revealed: Tensor
    start: int


@torch.inference_mode()
def generate(
    model: Model,
    prompts: Sequence[str],
    watermark: Watermark | OtherMark | None = None,
    sampler: Sampler = LLADA,
    *,
    tokens: int = TOKENS,
    chat: bool = True,
    seed: int = 0,
    batch_size: int = 8,
    on_step: Callable[[Step], None] | None = None,
    progress: bool = False,
) -> list[Generation]:
    """Write a text of up to `tokens` tokens for each prompt, marked if a watermark is given.

    With `chat` a prompt is a question to answer, without it a text to continue. The same seed and
    batch size give the same texts. `on_step` is called after every step, `progress` shows a bar.
    A block-causal model writes one text at a time: its blocks begin where each text begins.

    >>> model = load_model("embedded")  # doctest: +SKIP
    >>> [reply] = generate(model, ["Write a story about a dog."], watermark)  # doctest: +SKIP
    >>> Detector(key).detect(reply.ids).verdict.value  # doctest: +SKIP
    'watermarked'
    """
    if batch_size < 1 or seed < 0:
        raise DllmarkError(
            f"batch_size is at least 1 and seed at least 0; got {batch_size} and {seed}"
        )
    check_fit(model, watermark, sampler, tokens)
    encoded = check_prompts(model, prompts, tokens, chat)
    batch_size = 1 if model.config.block_causal else batch_size
    batches = range(0, len(encoded), batch_size)
    total = None if isinstance(sampler, Parallel | Llada2) else steps_for(sampler, tokens)
    generations: list[Generation] = []
    columns = [*Progress.get_default_columns(), MofNCompleteColumn()]
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("writing", total=None if total is None else total * len(batches))
        for first in batches:
            canvas = _canvas(model, encoded[first : first + batch_size], tokens, sampler)
            generator = batch_generator(model, seed, first // batch_size)
            for number in denoise(model, canvas, sampler, watermark, generator):
                bar.advance(task)
                if on_step:
                    on_step(_step(number, total, canvas, tokens))
            batch = prompts[first : first + batch_size]
            generations += _generations(model, batch, canvas, tokens, watermark)
    return generations


@torch.inference_mode()
def generate_both(
    model: Model,
    prompt: str,
    watermark: Watermark,
    sampler: Llada = LLADA,
    *,
    tokens: int = TOKENS,
    chat: bool = True,
    seed: int = 0,
    on_step: Callable[[Step], None] | None = None,
) -> tuple[Generation, Generation]:
    """Write a text with the watermark and one without it, step by step beside each other.

    They are two rows of one batch and share the noise that tokens are drawn with. In LLaDA's own
    order they are so the texts that `generate` writes one by one, and differ by the mark alone.

    >>> marked, unmarked = generate_both(model, "Why is the sky blue?", mark)  # doctest: +SKIP
    """
    check_fit(model, watermark, sampler, tokens)
    encoded = check_prompts(model, [prompt, prompt], tokens, chat)
    canvas = replace(_canvas(model, encoded, tokens, sampler), pair=True)
    for number in denoise(model, canvas, sampler, watermark, batch_generator(model, seed)):
        if on_step:
            on_step(_step(number, steps_for(sampler, tokens), canvas, tokens))
    marked, unmarked = _generations(model, [prompt, prompt], canvas, tokens, watermark)
    return marked, replace(unmarked, watermark=None)


def _step(number: int, total: int | None, canvas: Canvas, tokens: int) -> Step:
    """Return a canvas as it stands after a step, which will change no more."""
    asked = slice(canvas.start + tokens)
    now, known = canvas.tokens[:, asked], canvas.revealed[:, asked]
    return Step(number, total, now.clone(), known.clone(), canvas.start)


def check_fit(
    model: Model, watermark: Watermark | OtherMark | None, sampler: Sampler, tokens: int
) -> None:
    """Raise `DllmarkError` unless these can write so many tokens together."""
    check_length(sampler, tokens)
    if isinstance(watermark, Watermark):
        check_strategy(watermark.strategy, sampler)
    if watermark and watermark.tokenizer.fingerprint != model.tokenizer.fingerprint:
        raise MismatchError(
            f"the watermark is for the tokenizer {watermark.tokenizer.name}, but {model.name} has "
            "another one: make a key for this model with `dllmark keygen --model`"
        )
    check_sampler(model, sampler)


def check_sampler(model: Model, sampler: Sampler) -> None:
    """Raise `DllmarkError` unless the sampler is made for models that attend as this one does."""
    trained = model.config.block_length
    if isinstance(sampler, Llada2) and trained and sampler.block_length != trained:
        raise DllmarkError(
            f"{model.name} was trained with blocks of {trained}, and these are of "
            f"{sampler.block_length}: give a block length of {trained}"
        )
    if model.config.block_causal and not isinstance(sampler, Llada2):
        raise DllmarkError(
            f"{model.name} is a {model.family.name} model, in which no block sees a later one: "
            "write with the sampler llada2"
        )
    if isinstance(sampler, Llada2) and not model.config.block_causal:
        raise DllmarkError(
            f"the sampler llada2 is for models in which no block sees a later one, and "
            f"{model.name} is a {model.family.name} model: take another sampler"
        )


def check_prompts(model: Model, prompts: Sequence[str], tokens: int, chat: bool) -> list[Ids]:
    """Return the ids of each prompt, or raise `DllmarkError` for one that cannot be used."""
    if isinstance(prompts, str):
        raise DllmarkError("prompts is a list of texts: put a single one in [ ]")
    templated = [model.chat(prompt) if chat else prompt for prompt in prompts]
    encoded = model.tokenizer.encode_many(templated)
    longest = model.config.max_length
    for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True), 1):
        if not prompt.strip():
            raise DllmarkError(f"prompt {number} is empty: give at least one word to start from")
        if len(ids) + tokens > longest:
            raise DllmarkError(
                f"prompt {number} has {len(ids)} tokens and {tokens} are to be written, but "
                f"{model.name} takes {longest} in all: shorten the prompt or write fewer"
            )
    return encoded


def _canvas(model: Model, encoded: list[Ids], tokens: int, sampler: Sampler) -> Canvas:
    """Return prompts, padded on the left to the same length, with masks after them.

    LLaDA2 writes whole blocks, the last one too.
    """
    start = max(map(len, encoded))
    length = start + tokens
    if isinstance(sampler, Llada2):
        length += -length % sampler.block_length
    shape = (len(encoded), length)
    written = torch.full(shape, model.mask_id)
    attended = torch.ones(shape, dtype=torch.bool)
    for row, ids in enumerate(encoded):
        padding = start - len(ids)
        written[row, :padding] = model.pad_id
        written[row, padding:start] = torch.from_numpy(ids)
        attended[row, :padding] = False
    revealed = torch.zeros(shape, dtype=torch.bool)
    revealed[:, :start] = True
    return Canvas(
        tokens=written.to(model.device),
        revealed=revealed.to(model.device),
        attended=None if attended.all() else attended.to(model.device),
        known_left=torch.zeros(shape, dtype=torch.bool, device=model.device),
        start=start,
    )


def batch_generator(model: Model, seed: int, batch: int = 0) -> torch.Generator:
    """Return the source of all randomness of one batch.

    The seed is mixed into 32 bits, because torch's generator on the CPU looks at no more.
    """
    mixed = int(np.random.SeedSequence(seed, spawn_key=(batch,)).generate_state(1)[0])
    return torch.Generator(model.device).manual_seed(mixed)


def _generations(
    model: Model,
    prompts: Sequence[str],
    canvas: Canvas,
    tokens: int,
    watermark: Watermark | OtherMark | None,
) -> list[Generation]:
    """Return the texts of a finished canvas, each cut at its end, or after so many tokens."""
    identity = watermark.identity.to_dict() if watermark else None
    generations = []
    rows = zip(
        prompts,
        canvas.tokens[:, canvas.start : canvas.start + tokens].tolist(),
        canvas.known_left[:, canvas.start : canvas.start + tokens].tolist(),
        strict=True,
    )
    for prompt, ids, known in rows:
        end = next((at for at, id_ in enumerate(ids) if id_ in model.end_ids), len(ids))
        share = sum(known[:end]) / end if end else 0.0
        text = model.tokenizer.decode(ids[:end])
        generations.append(Generation(prompt, text, ids[:end], identity, share))
    return generations
