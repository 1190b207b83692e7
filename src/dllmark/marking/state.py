"""A moment of generation, as `Watermark.bias` is given it, and what the two paths share of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dllmark.errors import InputError, TokenizerError
from dllmark.marking.strategies import Strategy

Reachable = Callable[[Tensor], Tensor | None]
"""From the most that colours can add to the logits of each position, [B, K], to the tokens that a
sampler could draw then, [B, K, V]: only their colours matter. None for all."""


@dataclass(frozen=True)
class BiasSettings:
    """What the bias of a watermark depends on beside its key.

    `top_k` is how many tokens predict an unrevealed neighbour; with 0 it gives no term.
    """

    strategy: Strategy
    delta: float
    gamma: float
    top_k: int

    @property
    def sides(self) -> int:
        """How many neighbours count: the left one, or both."""
        return 2 if self.strategy.backward else 1

    @property
    def weighted(self) -> bool:
        """Whether each predicted token counts by its probability."""
        return self.strategy.prediction == "expectation"


@dataclass(frozen=True)
class State:
    """The tensors of one call of `Watermark.bias`, which describes them."""

    tokens: Tensor
    revealed: Tensor
    logits: Tensor
    positions: Tensor
    logit_positions: Tensor | None = None
    reachable: Reachable | None = None
    prompt_mask: Tensor | None = None

    @property
    def length(self) -> int:
        """How long the sequences are."""
        return self.tokens.shape[1]

    @property
    def vocab_size(self) -> int:
        """How many tokens there are logits for."""
        return self.logits.shape[-1]

    def check_shapes(self) -> None:
        """Raise `InputError` for tensors of the wrong shape, kind or device; reads no values."""
        _check_tensor("logits", self.logits, "[B, R, V]", "floating-point numbers")
        _check_tensor("tokens", self.tokens, "[B, L]", "integers")
        _check_tensor("revealed", self.revealed, "[B, L]", "truth values")
        _check_tensor("positions", self.positions, "[B, K]", "integers")
        tensors = {"tokens": self.tokens, "revealed": self.revealed, "positions": self.positions}
        if self.logit_positions is not None:
            _check_tensor("logit_positions", self.logit_positions, "[B, R]", "integers")
            tensors["logit_positions"] = self.logit_positions
        if self.prompt_mask is not None:
            _check_tensor("prompt_mask", self.prompt_mask, "[B, L]", "truth values")
            tensors["prompt_mask"] = self.prompt_mask
        batch, covered, _ = self.logits.shape
        for name, tensor in tensors.items():
            if len(tensor) != batch or tensor.device != self.logits.device:
                raise InputError(
                    f"{name} is of {len(tensor)} sequences on {tensor.device}, logits of {batch} "
                    f"on {self.logits.device}"
                )
        for name in ("revealed", "prompt_mask"):
            count = tensors.get(name, self.tokens).shape[1]
            if count != self.length or not self.length:
                raise InputError(
                    f"tokens has {self.length} positions and {name} {count}: give both of the "
                    "whole sequence"
                )
        listed = self.length if self.logit_positions is None else self.logit_positions.shape[1]
        if listed != covered:
            raise InputError(
                f"logits of {covered} positions, where {listed} are expected: say with "
                "`logit_positions` which they are, or give those of the whole sequence"
            )

    def check_values(self) -> None:
        """Raise for positions or revealed tokens that are none; the host waits for no GPU.

        What stands at an unrevealed position does not matter: a mask may have any id.
        """
        empty, inside = self.positions == -1, self.positions < self.length
        message = "a position to fill is not among those of the logits"
        _require(empty | inside & (self.logit_index(self.positions) >= 0), InputError(message))
        known = (self.tokens >= 0) & (self.tokens < self.vocab_size) | ~self.revealed
        message = f"a revealed token is outside the vocabulary: ids are below {self.vocab_size}"
        _require(known, TokenizerError(message))

    def logit_index(self, positions: Tensor) -> Tensor:
        """Return [B, K]: where in the logits each position is, -1 where it is not."""
        covered = self.logits.shape[1]
        if self.logit_positions is None:
            return torch.where((positions >= 0) & (positions < covered), positions, -1).long()
        number = torch.arange(covered, device=positions.device)
        same = self.logit_positions[:, None, :] == positions[..., None]
        index = torch.where(same, number, -1).amax(-1) if covered else positions.new_tensor(-1)
        return torch.where(positions >= 0, index, -1)

    def reachable_tokens(self, gain: Tensor) -> Tensor | None:
        """Return [B, K, V]: the tokens whose bias matters if logits gain so much; None for all."""
        tokens = None if self.reachable is None else self.reachable(gain)
        shape = (*self.positions.shape, self.vocab_size)
        if tokens is not None and (tokens.shape != shape or tokens.dtype != torch.bool):
            raise InputError(
                f"reachable gave {tokens.dtype} of the shape {tuple(tokens.shape)}, not one truth "
                f"value for each of {shape}"
            )
        return tokens


def texts_of(index: Tensor) -> Tensor:
    """Return [B, K]: the text that each element belongs to."""
    return torch.arange(len(index), device=index.device)[:, None].expand_as(index)


def _check_tensor(name: str, tensor: Tensor, shape: str, kind: str) -> None:
    """Raise `InputError` unless a tensor has as many dimensions as that shape, and that kind."""
    if tensor.ndim != shape.count(",") + 1 or _kind(tensor.dtype) != kind:
        raise InputError(
            f"{name} is a tensor {shape} of {kind}; got {tensor.dtype} of the shape "
            f"{tuple(tensor.shape)}"
        )


def _kind(dtype: torch.dtype) -> str:
    """Return what numbers of a format are."""
    if dtype == torch.bool:
        return "truth values"
    if dtype.is_complex:
        return "complex numbers"
    return "floating-point numbers" if dtype.is_floating_point else "integers"


def _require(condition: Tensor, error: Exception) -> None:
    """Raise the error unless the condition holds everywhere; on a GPU, without waiting for it."""
    if condition.is_cuda:
        torch._assert_async(condition.all(), str(error))
    elif not condition.all():
        raise error
