"""diffusers: a scheduler for `LLaDA2Pipeline` that writes with the watermark."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dllmark.errors import DllmarkError
from dllmark.integrations.marker import Marker, needs
from dllmark.marking.strategies import ENGINE_DEFAULT
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer

with needs("diffusers>=0.42"):
    from diffusers import BlockRefinementScheduler


class DllmarkScheduler(Marker, BlockRefinementScheduler):  # type: ignore[misc]  # untyped
    """A `BlockRefinementScheduler` that marks what the model writes.

        pipe = LLaDA2Pipeline(model, DllmarkScheduler(model, "my.key"), tokenizer)

    `model` is the pipeline's: it is where the scheduler sees the text before a block. Further
    settings are those of `BlockRefinementScheduler`; the key is none of them, so no config ever
    holds it. `biased` counts; `check()` raises if nothing was marked.
    """

    def __init__(
        self,
        model: nn.Module,
        key: Source,
        strategy: str = ENGINE_DEFAULT.name,
        delta: float | None = None,
        *,
        tokenizer: AnyTokenizer | None = None,
        audit: str | Path | None = None,
        **settings: Any,
    ) -> None:
        BlockRefinementScheduler.__init__(self, **settings)
        Marker.__init__(self, key, strategy, delta, tokenizer=tokenizer, audit=audit)
        self._seen: Tensor | None = None
        _watch(model, self)

    def set_timesteps(self, *arguments: Any, **options: Any) -> None:
        """Begin a text, as the pipeline does here: what it comes with is prompt."""
        self.prompts.forget()
        super().set_timesteps(*arguments, **options)

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
                "without a mask token every position holds a random token: this scheduler is for "
                "LLaDA2Pipeline; DiffusionGemmaPipeline is marked by "
                "dllmark.integrations.diffusion_gemma.watermarked_pipeline"
            )
        self.check_mask(mask_token_id)
        text = self._text(sample)
        start = text.shape[1] - sample.shape[1]
        writable = torch.zeros_like(text, dtype=torch.bool)
        writable[:, start:] = True if prompt_mask is None else ~prompt_mask
        logits = model_output.clone()
        self.mark(text, text != mask_token_id, logits, writable, offset=start, at=start)
        masks = {"mask_token_id": mask_token_id, "prompt_mask": prompt_mask}
        return super().step(logits, timestep, sample, **masks, **options)

    def _text(self, block: Tensor) -> Tensor:
        """Return the text up to the end of the block: what the model has just seen."""
        seen, self._seen = self._seen, None
        if seen is None or not torch.equal(seen[:, -block.shape[1] :], block):
            raise DllmarkError(
                "the model that was given to the scheduler is not the one that was just run: "
                "pass `pipe.model`"
            )
        return seen


def _watch(model: nn.Module, scheduler: DllmarkScheduler) -> None:
    """Show a scheduler the tokens its model is called with, for as long as the scheduler lives."""
    reference = weakref.ref(scheduler)

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watching = reference()
        if watching is not None:
            watching._seen = args[0] if args else kwargs.get("input_ids")

    handle = model.register_forward_pre_hook(see, with_kwargs=True)
    weakref.finalize(scheduler, handle.remove)
