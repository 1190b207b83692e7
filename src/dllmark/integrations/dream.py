"""Dream, Dream-Coder and DiffuCoder: a hook for their own `diffusion_generate`."""

from __future__ import annotations

from torch import Tensor

from dllmark.integrations.marker import Marker
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer

MASK_ID = 151_666
"""The mask of Dream's tokenizer."""


class Hook(Marker):
    """Called by Dream at each step with the logits before temperature, top-p and confidence."""

    def __call__(self, step: int, x: Tensor, logits: Tensor) -> Tensor:
        """Bias in place the logits [B, L, V] of every position of x [B, L] that is masked."""
        assert self.mask_id is not None
        masked = x == self.mask_id
        self.mark(x, ~masked, logits, masked)
        return logits


def hook(
    key: Source,
    strategy: str = "predictive-bidirectional",
    delta: float = 2.0,
    *,
    tokenizer: AnyTokenizer | None = None,
    mask_id: int = MASK_ID,
) -> Hook:
    """Return what `model.diffusion_generate` takes as `generation_logits_hook_func`.

        model.diffusion_generate(..., generation_logits_hook_func=hook("my.key"))

    Some samplers accept the hook and never call it. The hook then warns when it is thrown away; to
    get an error instead, call `check()` after generating, or generate inside `with`:

        with hook("my.key") as mark:
            model.diffusion_generate(..., generation_logits_hook_func=mark)
    """
    return Hook(key, strategy, delta, tokenizer=tokenizer, mask_id=mask_id)
