"""diffusers: a scheduler for `LLaDA2Pipeline` that writes with the watermark."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from dllmark.errors import DllmarkError
from dllmark.integrations.marker import Marker, engine
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer


def scheduler(
    model: nn.Module,
    key: Source,
    strategy: str = "predictive-bidirectional",
    delta: float = 2.0,
    *,
    tokenizer: AnyTokenizer | None = None,
    **settings: Any,
) -> Any:
    """Return a `BlockRefinementScheduler` that marks what the model writes.

        pipe = LLaDA2Pipeline(model, scheduler(model, "my.key"), tokenizer)

    `model` is the pipeline's: it is where the scheduler sees the token before a block. Further
    settings are those of `BlockRefinementScheduler`. `biased` counts; `marker.check()`
    raises if nothing was marked.
    """
    made = _scheduler_class()(**settings)
    made.marker = Marker(key, strategy, delta, tokenizer=tokenizer)
    _watch(model, made)
    return made


class _Marked:
    """Mixed into `BlockRefinementScheduler`; the key is no setting, so no config ever holds it."""

    marker: Marker
    _seen: Tensor | None = None

    @property
    def biased(self) -> int:
        """How many rows of logits were biased."""
        return self.marker.biased

    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *,
        mask_token_id: int | None = None,
        prompt_mask: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Refine a block as the base class does, from biased logits.

        Committed tokens are biased too: the pipeline may edit them, and an edit chosen without the
        watermark would erase it.
        """
        if mask_token_id is None:
            raise DllmarkError(
                "without a mask token (DiffusionGemma) every position holds a random token, so no "
                "neighbour is known: this watermark is for LLaDA2Pipeline"
            )
        self.marker.check_mask(mask_token_id)
        left = self._left_of(sample, mask_token_id)
        writable = torch.ones_like(sample, dtype=torch.bool)
        if prompt_mask is not None:
            writable &= ~prompt_mask
        logits = model_output.clone()
        self.marker.mark_block(
            left, left != mask_token_id, sample, sample != mask_token_id, logits, writable
        )
        return super().step(  # type: ignore[misc]
            logits,
            timestep,
            sample,
            mask_token_id=mask_token_id,
            prompt_mask=prompt_mask,
            **options,
        )

    def _left_of(self, block: Tensor, mask_id: int) -> Tensor:
        """Return [B]: the token before the block, as the model has just seen it, or the mask."""
        seen, self._seen = self._seen, None
        size = block.shape[1]
        if seen is None or not torch.equal(seen[:, -size:], block):
            raise DllmarkError(
                "the model that was given to the scheduler is not the one that was just run: "
                "pass `pipe.model`"
            )
        return seen[:, -size - 1] if seen.shape[1] > size else torch.full_like(block[:, 0], mask_id)


@functools.cache
def _scheduler_class() -> type:
    """Return the subclass, made when it is first needed, so that importing this is cheap."""
    base = engine("diffusers", "diffusers>=0.42").BlockRefinementScheduler
    return type("DllmarkBlockRefinementScheduler", (_Marked, base), {})


def _watch(model: nn.Module, scheduler: _Marked) -> None:
    """Show a scheduler the tokens its model is called with, for as long as the scheduler lives."""
    reference = weakref.ref(scheduler)

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watching = reference()
        if watching is not None:
            watching._seen = args[0] if args else kwargs.get("input_ids")

    handle = model.register_forward_pre_hook(see, with_kwargs=True)
    weakref.finalize(scheduler, handle.remove)
