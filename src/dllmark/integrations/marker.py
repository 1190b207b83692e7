"""What the adapters share: bias logits in place, count it, and refuse to do nothing in silence."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

from dllmark.errors import DllmarkError
from dllmark.marking.watermark import Watermark
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer

Self = TypeVar("Self", bound="Marker")

MARKED_AT_ONCE = 1 << 24
"""Logits biased at a time, which bounds the memory a step needs beside its logits."""


class Marker:
    """A key's watermark inside somebody else's sampler.

    `biased` counts rows of logits: a position that stays masked for ten steps counts ten times.
    As a context manager it calls `check` at its end. One that nobody ever called says so when it
    is thrown away, since a text was then written without the mark.

    >>> marker = Marker(key, "predictive-bidirectional", delta=2.0)
    >>> tokens = torch.tensor([[7, 2, 2]])
    >>> masked = tokens == 2
    >>> marker.mark(tokens, ~masked, torch.zeros(1, 3, 16_384), masked)
    >>> marker.biased
    2
    """

    def __init__(
        self,
        key: Source,
        strategy: str = "predictive-bidirectional",
        delta: float = 2.0,
        *,
        tokenizer: AnyTokenizer | None = None,
        mask_id: int | None = None,
    ) -> None:
        self.biased = 0
        self.idle = False
        self.watermark = Watermark(key, strategy, delta, tokenizer=tokenizer)
        self.mask_id = mask_id
        if mask_id is not None:
            self.check_mask(mask_id)
        self.idle = True  # from here on, not to be called is a mistake

    def mark(
        self, tokens: Tensor, revealed: Tensor, logits: Tensor, where: Tensor, offset: int = 0
    ) -> None:
        """Bias in place the logits of the positions to write.

        tokens    [B, L]     the sequence as it is
        revealed  [B, L]     False only where the model has yet to write
        logits    [B, R, V]  row r is the prediction for position r + offset
        where     [B, L]     the positions to bias
        """
        self.idle = False
        _check_shapes(tokens, logits, offset)
        if logits.requires_grad and torch.is_grad_enabled():
            raise DllmarkError("the watermark is for generating: call the model under no_grad()")
        counts: list[int] = where.sum(1).tolist()
        if not sum(counts):
            return
        length, (batch, count, size) = tokens.shape[1], logits.shape
        number = torch.arange(length, device=tokens.device)
        order = torch.where(where, number, length).sort(1).values[:, : max(counts)]
        positions = torch.where(order < length, order, -1)
        rows = None
        if offset:
            rows = torch.arange(offset, offset + count, device=tokens.device).expand(batch, -1)
        held: tuple[Tensor, Tensor] | None = None
        for part in torch.split(positions, max(1, MARKED_AT_ONCE // (batch * size)), dim=1):
            biased = self.watermark.bias(tokens, revealed, logits, part, rows)
            # The part after this one predicts its left neighbour here, from unbiased logits.
            if held is not None:
                _write(logits, *held, offset)
            held = part, biased
        assert held is not None
        _write(logits, *held, offset)
        self.biased += sum(counts)

    def mark_block(
        self,
        left: Tensor,
        known: Tensor,
        block: Tensor,
        revealed: Tensor,
        logits: Tensor,
        where: Tensor,
    ) -> None:
        """Bias a block [B, N] as `mark` does, with the tokens [B] to its left, where known [B]."""
        self.mark(
            torch.cat([left[:, None], block], 1),
            torch.cat([known[:, None], revealed], 1),
            logits,
            torch.cat([torch.zeros_like(known)[:, None], where], 1),
            offset=1,
        )

    def check_mask(self, mask_id: int) -> None:
        """Raise if a token said to be the mask is a word: nothing would ever look masked."""
        scored = self.watermark.tokenizer.scored
        if mask_id < 0 or (mask_id < len(scored) and scored[mask_id]):
            raise DllmarkError(
                f"token {mask_id} is no mask in the tokenizer {self.watermark.tokenizer.name}: "
                "pass the model's as mask_id"
            )

    def check(self) -> None:
        """Raise if no token was biased so far."""
        self.idle = False
        if not self.biased:
            raise DllmarkError(
                "no token was biased, so nothing is marked: the sampler never called the "
                "watermark, or its masks are not those the watermark was told of"
            )

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.idle = False
        if kind is None:
            self.check()

    def __del__(self) -> None:
        if getattr(self, "idle", False):
            warnings.warn(
                "a watermark was made and never called: what was written meanwhile is not marked",
                RuntimeWarning,
                stacklevel=2,
            )


def engine(module: str, wanted: str) -> Any:
    """Import a module of an engine, or say in one line what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise DllmarkError(f"this adapter needs {wanted}: pip install '{wanted}'") from None


def _check_shapes(tokens: Tensor, logits: Tensor, offset: int) -> None:
    """Raise unless there is a row of logits for each token."""
    batch, length = tokens.shape
    covering = {(batch, length), (batch, length - offset)}
    if logits.ndim != 3 or tuple(logits.shape[:2]) not in covering:
        raise DllmarkError(
            f"logits of shape {tuple(logits.shape)} do not cover tokens of shape "
            f"{tuple(tokens.shape)}: the watermark needs a row of logits for each token"
        )


def _write(logits: Tensor, positions: Tensor, biased: Tensor, offset: int) -> None:
    """Put the biased logits of some positions [B, K] where they belong; -1 stands for none."""
    text, place = (positions >= 0).nonzero(as_tuple=True)
    logits[text, positions[text, place] - offset] = biased[text, place]
