"""What the adapters share: bias logits in place, count it, and refuse to do nothing in silence."""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import torch
from torch import Tensor

from dllmark.errors import DllmarkError, InputError, MissingPackageError
from dllmark.integrations.audit import RequestCount, audit_file
from dllmark.integrations.prompt_memory import PromptMemory
from dllmark.marking.strategies import ENGINE_DEFAULT
from dllmark.marking.watermark import Watermark
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer

Self = TypeVar("Self", bound="Marker")

MARKED_AT_ONCE = 1 << 24
"""Logits biased at a time, which bounds the memory a step needs beside its logits."""


class Marker:
    """A key's watermark inside somebody else's sampler: the base of the adapters.

    `biased` counts positions at each step: one that stays masked for ten steps counts ten times.
    A request ends with `check`, which raises if nothing was biased for it. As a context manager it
    calls `check` at its end. One that nobody ever called says so when it is thrown away, since a
    text was then written without the mark. With `audit`, a file, each request leaves a line there.

    >>> marker = Marker(key)
    >>> tokens = torch.tensor([[7, 2, 2]])
    >>> masked = tokens == 2
    >>> marker.mark(tokens, ~masked, torch.zeros(1, 3, 16_384), masked)
    [2]
    >>> marker.biased
    2
    """

    def __init__(
        self,
        key: Source,
        strategy: str = ENGINE_DEFAULT.name,
        delta: float | None = None,
        *,
        tokenizer: AnyTokenizer | None = None,
        mask_id: int | None = None,
        audit: str | Path | None = None,
    ) -> None:
        self.biased = 0
        self.idle = False
        self.watermark = Watermark(key, strategy, delta, tokenizer=tokenizer)
        if self.watermark.strategy.joint:
            raise InputError(
                f"{strategy} chooses positions, which an engine does not leave to it: take another "
                f"strategy, for instance {ENGINE_DEFAULT.name}"
            )
        path = None if audit is None else audit_file(audit)
        self.request = RequestCount(self.watermark, path)
        self.prompts = PromptMemory()
        self._checked = False
        if path is not None:
            weakref.finalize(self, self.request.end)  # a last request that nobody checked
        self.mask_id = mask_id
        if mask_id is not None:
            self.check_mask(mask_id)
        self.idle = True  # from here on, not to be called is a mistake

    def mark(
        self,
        tokens: Tensor,
        revealed: Tensor,
        logits: Tensor,
        where: Tensor,
        offset: int = 0,
        at: int | None = 0,
        prompt_mask: Tensor | None = None,
    ) -> list[int]:
        """Bias in place the logits of the positions to write; return how many there are in each.

        tokens       [B, L]     the sequence as it is
        revealed     [B, L]     False only where the model has yet to write
        logits       [B, R, V]  logits[:, r] predict position r + offset
        where        [B, L]     the positions to bias, which the logits must cover
        at                      where tokens begin in the text, to count what is written once; None
                                if they were counted already
        prompt_mask  [B, L]     True at what the model was given; else it is told from what is to be
                                written in each call (`PromptMemory`)
        """
        self.idle = False
        _check_batch(tokens, logits)
        if logits.requires_grad and torch.is_grad_enabled():
            raise DllmarkError("the watermark is for generating: call the model under no_grad()")
        length, (batch, count, size) = tokens.shape[1], logits.shape
        counts: list[int]
        covered: list[int]
        inside = where[:, offset : offset + count]
        counts, covered = torch.stack([where.sum(1), inside.sum(1)]).tolist()
        if counts != covered:
            raise _uncovered(tokens, logits)
        if not sum(counts):
            return counts
        if at is not None:
            self.request.see(where, at)
        if prompt_mask is None and self.watermark.strategy.adaptive:
            prompt_mask = self.prompts.see(tokens, where)
        number = torch.arange(length, device=tokens.device)
        order = torch.where(where, number, length).sort(1).values[:, : max(counts)]
        positions = torch.where(order < length, order, -1)
        logit_positions = None
        if offset or count != length:
            rows = torch.arange(offset, offset + count, device=tokens.device)
            logit_positions = rows.expand(batch, -1)
        held: tuple[Tensor, Tensor] | None = None
        for part in torch.split(positions, max(1, MARKED_AT_ONCE // (batch * size)), dim=1):
            biased = self.watermark.bias(
                tokens, revealed, logits, part, logit_positions, prompt_mask=prompt_mask
            )
            # The part after this one predicts its left neighbour here, from unbiased logits.
            if held is not None:
                _write(logits, *held, offset)
            held = part, biased
        assert held is not None
        _write(logits, *held, offset)
        self.biased += sum(counts)
        self.request.biased += sum(counts)
        return counts

    def mark_block(
        self,
        left: Tensor,
        known: Tensor,
        block: Tensor,
        revealed: Tensor,
        logits: Tensor,
        where: Tensor,
        at: int = 0,
    ) -> list[int]:
        """Bias a block [B, N] as `mark` does, with the tokens [B] to its left, where known [B]."""
        return self.mark(
            torch.cat([left[:, None], block], 1),
            torch.cat([known[:, None], revealed], 1),
            logits,
            torch.cat([torch.zeros_like(known)[:, None], where], 1),
            offset=1,
            at=at,
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
        """End a request: raise if no token was biased for it, else write its line, if asked to."""
        self.idle = False
        self._checked = True
        if not self.request.biased:
            raise DllmarkError(
                "no token was biased, so nothing is marked: the sampler never called the "
                "watermark, or its masks are not those the watermark was told of"
            )
        self.request.end()

    def __enter__(self: Self) -> Self:
        self._checked = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.idle = False
        if kind is not None:
            self.request.drop()
        elif self.request.biased or not self._checked:
            self.check()

    def __del__(self) -> None:
        if getattr(self, "idle", False):
            warnings.warn(
                "a watermark was made and never called: what was written meanwhile is not marked",
                RuntimeWarning,
                stacklevel=2,
            )


@contextmanager
def needs(requirement: str) -> Iterator[None]:
    """Import an engine inside `with`; where it is missing or too old, say what to install.

    >>> with needs("torch>=2.5"):
    ...     import torch
    """
    package = re.split(r"\W", requirement)[0]
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        message = f"this adapter needs {requirement}: pip install '{requirement}'"
        raise MissingPackageError(message) from None


def check_whole(tokens: Tensor, logits: Tensor) -> None:
    """Raise unless a model that was shown tokens [B, L] answered with logits [B, L, V]."""
    _check_batch(tokens, logits)
    if logits.shape[1] != tokens.shape[1]:
        raise _uncovered(tokens, logits)


def _check_batch(tokens: Tensor, logits: Tensor) -> None:
    """Raise unless tokens are [B, L] and logits [B, R, V]."""
    if tokens.ndim != 2 or logits.ndim != 3 or len(tokens) != len(logits):
        raise _uncovered(tokens, logits)


def _uncovered(tokens: Tensor, logits: Tensor) -> DllmarkError:
    return DllmarkError(
        f"logits of shape {tuple(logits.shape)} do not cover tokens of shape "
        f"{tuple(tokens.shape)}: the watermark needs logits [B, L, V] for all tokens [B, L]"
    )


def _write(logits: Tensor, positions: Tensor, biased: Tensor, offset: int) -> None:
    """Put the biased logits of some positions [B, K] where they belong; -1 stands for none."""
    text, place = (positions >= 0).nonzero(as_tuple=True)
    logits[text, positions[text, place] - offset] = biased[text, place]
