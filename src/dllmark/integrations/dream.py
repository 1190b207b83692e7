"""Dream, Dream-Coder and DiffuCoder: a hook for their own `diffusion_generate`."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from dllmark.integrations.marker import Marker, check_whole
from dllmark.marking.strategies import ENGINE_DEFAULT
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer

MASK_ID = 151_666
"""The mask of Dream's tokenizer."""


class DllmarkLogitsHook(Marker):
    """What `model.diffusion_generate` takes as `generation_logits_hook_func`.

        model.diffusion_generate(..., generation_logits_hook_func=DllmarkLogitsHook("my.key"))

    Some samplers accept the hook and never call it. The hook then warns when it is thrown away; to
    get an error instead, call `check()` after generating, or generate inside `with`:

        with DllmarkLogitsHook("my.key") as hook:
            model.diffusion_generate(..., generation_logits_hook_func=hook)
    """

    def __init__(
        self,
        key: Source,
        strategy: str = ENGINE_DEFAULT.name,
        delta: float | None = None,
        *,
        tokenizer: AnyTokenizer | None = None,
        mask_id: int = MASK_ID,
        audit: str | Path | None = None,
    ) -> None:
        super().__init__(key, strategy, delta, tokenizer=tokenizer, mask_id=mask_id, audit=audit)

    def __call__(self, step: int | None, x: Tensor, logits: Tensor) -> Tensor:
        """Bias in place the logits [B, L, V] of every position of x [B, L] that is masked.

        Dream calls it at each step, before temperature, top-p and confidence.
        """
        assert self.mask_id is not None
        self.idle = False
        if step == 0:
            self.request.end()  # the one before, if nobody checked it
            self.prompts.forget()
        check_whole(x, logits)
        masked = x == self.mask_id
        self.mark(x, ~masked, logits, masked)
        return logits
