"""What is `cooled` of the strategies: marked text is on average as sure as without the mark.

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

import torch
from torch import Tensor

COLDEST = 4
"""How many times colder than the sampler a step is at most."""

POINTS, ROUNDS = 32, 3
"""So many values of β are tried at once, each time closer together: to 0.0001 of the interval."""

LEAST_SURE = -30.0
"""How unsure of a token a model can be; what is less likely counts as this."""

LOWEST = 1e-3
"""The temperature that chances at 0 are computed for; then the best is taken, without a draw."""


def cooled(chances: Tensor, weights: Tensor, sure: Tensor, temperature: float) -> Tensor:
    """Return the logs of weights [B, W, C] after cooling, given those of the unmarked chances.

    `sure` is how sure the model is of each choice, the log of a probability.

    >>> sure = torch.tensor([[[0.9, 0.1]]]).log()
    >>> cooled(sure, sure + torch.tensor([0.0, 1.0]), sure, 1.0).softmax(2)
    tensor([[[0.9000, 0.1000]]])
    """
    sure = sure.clamp(min=LEAST_SURE)
    most = (COLDEST - 1) / (temperature or LOWEST)
    if not temperature:
        return weights + most * sure
    by = least_cooling(chances.flatten(1), weights.flatten(1), sure.flatten(1), most)
    return weights + by[..., None] * sure


def least_cooling(before: Tensor, after: Tensor, sure: Tensor, most: float) -> Tensor:
    """Return the least β [B, 1] of which e^(after + β · sure) is as sure as e^before in the mean.

    All are [B, N], the first two logarithms of chances up to a factor. β is at most `most`.

    >>> sure = torch.tensor([[0.9, 0.1]]).log()
    >>> least_cooling(sure, sure + torch.tensor([[0.0, 1.0]]), sure, 4.0)  # doctest: +ELLIPSIS
    tensor([[0.45...]])
    """
    target = (before.softmax(1) * sure).sum(1, keepdim=True)
    least = torch.zeros_like(target)
    spacing, steps = most, torch.arange(POINTS, device=sure.device)
    for _ in range(ROUNDS):
        spacing /= POINTS
        tried = least + spacing * steps
        weights = after[:, None] + tried[..., None] * sure[:, None]
        found = (weights.softmax(2) * sure[:, None]).sum(2)
        below = (found < target).sum(1, keepdim=True)  # it grows with β
        least = tried.gather(1, (below - 1).clamp(min=0))
    enough = (after.softmax(1) * sure).sum(1, keepdim=True) >= target
    return torch.where(enough, 0.0, least + spacing / 2)
