"""What we measure against: LLaDA's published sampling step, and the reference watermark.

Both are written from their published descriptions, as plainly as they describe themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllmark.models.loading import Model
from dllmark.models.transformer import unfused


def official_step(model: Model, x: Tensor, block_end: int, count: int) -> None:
    """Reveal tokens as LLaDA's generate.py does at temperature 0, in place.

    The head and the softmax are computed for every position, and each row's best are taken in a
    loop. The model is computed by torch's own operations, one after the other.
    """
    mask_index = x == model.mask_id
    with unfused():
        logits = model.transformer(x)
    x0 = logits.argmax(-1)
    p = logits.softmax(-1)
    x0_p = p.gather(-1, x0[..., None])[..., 0]
    x0_p[:, block_end:] = -torch.inf
    x0 = torch.where(mask_index, x0, x)
    confidence = torch.where(mask_index, x0_p, -torch.inf)
    transfer = torch.zeros_like(x0, dtype=torch.bool)
    for row in range(len(confidence)):
        _, select = confidence[row].topk(count)
        transfer[row, select] = True
    x[transfer] = x0[transfer]


def reference_bias(
    matrix: Tensor, logits: Tensor, left: list[int], right: list[int], delta: float
) -> None:
    """Bias one position of each text [B, V] with both neighbours, in place.

    The green matrix [V, V] is in pinned host memory: a row is copied as it lies, a column is
    gathered first.
    """
    for row, (before, after) in enumerate(zip(left, right, strict=True)):
        forward = matrix[before].to(logits.device, non_blocking=True)
        backward = matrix[:, after].to(logits.device, non_blocking=True)
        logits[row] += delta * (forward.to(logits.dtype) + backward.to(logits.dtype))
