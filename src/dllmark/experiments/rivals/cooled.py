"""`adaptive-joint` that does not heat: what it writes is on average as sure as without the mark.

A mark prefers what is green, however unsure the model is of it, so it makes a sampler write as it
would at a higher temperature. Here the temperature is lowered as far as needed to make up for that,
in each step and for each text. Of all choices that gain as much, and that the model is on average
as sure of as of the sampler's own, this is the nearest to the sampler's (in Kullback-Leibler
divergence): the chance of each is e^(gain + β · sureness) times as high, with one β for all.

That is a temperature of a quarter at least, so β is at most 3 / T: at low temperatures, where the
sampler writes what it is surest of, nothing green could be as sure. At 0 it is always a quarter,
and the best is written: what it gains, and three times how sure the model is of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllmark.marking.watermark import Watermark
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import Tokenizer
from dllmark.sampling.joint import LOWEST, JointDenoiser

if TYPE_CHECKING:
    from dllmark.models.loading import Model
    from dllmark.sampling.canvas import Canvas
    from dllmark.sampling.denoiser import Denoiser
    from dllmark.sampling.settings import Sampler

DELTA = 7.2
"""What its aim is for: 65 % green pairs for γ 0.5, as that of `adaptive-joint` with its own δ."""

COLDEST = 4
"""How many times colder than the sampler a step is at most."""

HALVINGS = 16
"""How often the interval of β is halved: to less than 0.0001 of it."""

LEAST = -30.0
"""How unsure of a token a model can be; what is less likely counts as this."""


class Cooled:
    """`adaptive-joint` whose steps are cooled."""

    def __init__(self, key: WatermarkKey, tokenizer: Tokenizer, delta: float) -> None:
        self.watermark = Watermark(key, "adaptive-joint", delta, tokenizer=tokenizer)
        self.watermark.strategy = replace(self.watermark.strategy, default_delta=DELTA)
        self.identity, self.tokenizer = self.watermark.identity, tokenizer

    def denoiser(
        self, model: Model, canvas: Canvas, sampler: Sampler, generator: torch.Generator
    ) -> Denoiser:
        """Return what reveals the tokens of a canvas."""
        return CooledDenoiser(model, canvas, sampler, self.watermark, generator)


class CooledDenoiser(JointDenoiser):
    """Weighs a choice by what it gains and how sure the model is of it."""

    def weigh(self, chances: Tensor, gain: Tensor, sure: Tensor) -> Tensor:
        """Return [B, W, C]: the log of a choice's weight, with β times how sure the model is."""
        weights, sure = chances + gain, sure.clamp(min=LEAST)
        most = (COLDEST - 1) / (self.sampler.temperature or LOWEST)
        if not self.sampler.temperature:
            return weights + most * sure
        by = cooling(chances.flatten(1), weights.flatten(1), sure.flatten(1), most)
        return weights + by[..., None] * sure


def cooling(before: Tensor, after: Tensor, sure: Tensor, most: float) -> Tensor:
    """Return the least β [B, 1] of which e^(after + β · sure) is as sure as e^before in the mean.

    All are [B, N], the first two logarithms of chances up to a factor. β is at most `most`.

    >>> sure = torch.tensor([[0.9, 0.1]]).log()
    >>> cooling(sure, sure + torch.tensor([[0.0, 1.0]]), sure, 4.0)  # doctest: +ELLIPSIS
    tensor([[0.45...]])
    """
    target = (before.softmax(1) * sure).sum(1, keepdim=True)
    low, high = torch.zeros_like(target), torch.full_like(target, most)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = ((after + middle * sure).softmax(1) * sure).sum(1, keepdim=True)
        low, high = (
            torch.where(found < target, middle, low),
            torch.where(found < target, high, middle),
        )
    enough = (after.softmax(1) * sure).sum(1, keepdim=True) >= target
    return torch.where(enough, 0.0, (low + high) / 2)
