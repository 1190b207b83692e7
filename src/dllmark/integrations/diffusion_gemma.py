"""DiffusionGemma: the mark for a model that denoises a canvas of random tokens, without masks.

Every position may change in every step, so no neighbour is ever revealed: each is predicted from
the logits of the same step. Only the token before the canvas is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dllmark.errors import DllmarkError, InputError
from dllmark.integrations.marker import Marker, needs
from dllmark.marking.strategies import ENGINE_DEFAULT, find_strategy
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer

with needs("transformers>=5"):
    from transformers import LogitsProcessor

STRATEGY = ENGINE_DEFAULT.name
"""Others predict nothing, or take the likeliest token of a canvas of noise for certain. No pair
stands on a canvas, so nothing repeats one: here it is `expected-bidirectional`."""

DELTA = 2.0
"""docs/results/diffusion-gemma.md says why: biased logits are fed back to this model."""


class CanvasMarker(Marker):
    """The mark on a whole canvas: the base of the adapter for each engine."""

    def __init__(
        self,
        key: Source,
        strategy: str = STRATEGY,
        delta: float = DELTA,
        *,
        tokenizer: AnyTokenizer | None = None,
        audit: str | Path | None = None,
    ) -> None:
        if find_strategy(strategy).adaptive:
            raise InputError(
                f"{strategy} looks at what is written, and on a canvas of noise nothing is: take "
                f"another strategy, for instance {STRATEGY}"
            )
        super().__init__(key, strategy, delta, tokenizer=tokenizer, audit=audit)

    def mark_canvas(self, before: Tensor, logits: Tensor, at: int) -> Tensor:
        """Return the logits [B, N, V] of a canvas, biased.

        It begins at place `at` of the text. Of the tokens `before` [B, L] it the last one counts.

        Even places are biased first. Odd ones then predict their neighbours from biased logits,
        which are those the engine writes from.
        """
        self.idle = False
        if logits.ndim != 3 or before.ndim != 2 or len(logits) != len(before):
            raise DllmarkError(
                f"logits of shape {tuple(logits.shape)} after tokens of shape "
                f"{tuple(before.shape)}: this mark is for DiffusionGemma, which gives those of a "
                "canvas, [B, N, V]"
            )
        batch, size, _ = logits.shape
        known = torch.full((batch,), before.shape[1] > 0, device=logits.device)
        left = before[:, -1] if before.shape[1] else torch.zeros_like(known, dtype=torch.int64)
        canvas = left.new_zeros(batch, size)
        revealed = torch.zeros_like(canvas, dtype=torch.bool)
        odd = (torch.arange(size, device=logits.device) % 2 == 1).expand(batch, -1)
        biased = logits.clone()
        for where in (~odd, odd):
            self.mark_block(left, known, canvas, revealed, biased, where, at)
        return biased


class DllmarkCanvasProcessor(CanvasMarker, LogitsProcessor):
    """A `LogitsProcessor` for the `generate` of transformers' DiffusionGemma.

        mark = DllmarkCanvasProcessor("my.key")
        model.generate(**inputs, logits_processor=LogitsProcessorList([mark]))
        mark.check()

    `generate` adds its own processors to the list: make a new list for each call.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [B, N, V] of the canvas after input_ids [B, L], biased."""
        return self.mark_canvas(input_ids, scores, at=input_ids.shape[-1])


@contextmanager
def watermarked_pipeline(
    pipe: Any,
    key: Source,
    strategy: str = STRATEGY,
    delta: float = DELTA,
    *,
    tokenizer: AnyTokenizer | None = None,
    audit: str | Path | None = None,
) -> Iterator[CanvasMarker]:
    """Bias what the model of diffusers' `DiffusionGemmaPipeline` predicts while the block runs.

        with watermarked_pipeline(pipe, "my.key"):
            output = pipe(prompt="Why is the sky blue?", gen_length=256)

    It works with each scheduler of the pipeline, and with their corrector steps. Leaving the block
    without a biased token is an error.
    """
    model = getattr(pipe, "model", None)
    encoder = getattr(getattr(model, "model", None), "encoder", None)
    if not isinstance(model, nn.Module) or not isinstance(encoder, nn.Module):
        raise DllmarkError(
            f"{type(pipe).__name__} has no model with an encoder: this mark is for "
            "DiffusionGemmaPipeline"
        )
    marker = CanvasMarker(key, strategy, delta, tokenizer=tokenizer, audit=audit)
    before: list[Tensor] = []  # what was encoded last, and the places of its tokens

    def read(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before[:] = [kwargs["input_ids"], kwargs["position_ids"]]

    def write(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if not before:
            raise DllmarkError("the pipeline ran its model without its encoder: no text is known")
        tokens, places = before
        output.logits = marker.mark_canvas(tokens, output.logits, at=int(places[0, -1]) + 1)
        return output

    handles = [
        encoder.register_forward_pre_hook(read, with_kwargs=True),
        model.register_forward_hook(write),
    ]
    try:
        with marker:
            yield marker
    finally:
        for handle in handles:
            handle.remove()
