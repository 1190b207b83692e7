"""transformers, autoregressive: KGW's watermark with the relation that diffusion models get.

One key then marks both kinds of model, and one detector recognises both.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dllmark.errors import DllmarkError
from dllmark.integrations.marker import Marker, needs
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer

with needs("transformers>=5"):
    from transformers import LogitsProcessor


class DllmarkLogitsProcessor(Marker, LogitsProcessor):
    """A `LogitsProcessor` that adds delta to each token that makes a green pair.

        model.generate(**inputs, logits_processor=[DllmarkLogitsProcessor("my.key")])

    `biased` counts the tokens; `check()` raises if there was none.
    """

    def __init__(
        self,
        key: Source,
        delta: float | None = None,
        *,
        tokenizer: AnyTokenizer | None = None,
        audit: str | Path | None = None,
    ) -> None:
        super().__init__(key, "kgw", delta, tokenizer=tokenizer, audit=audit)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [B, V] of the next token, biased by the last of input_ids [B, L]."""
        self.idle = False
        if scores.ndim != 2 or input_ids.ndim != 2 or len(scores) != len(input_ids):
            raise DllmarkError(
                f"scores of shape {tuple(scores.shape)} for tokens of shape "
                f"{tuple(input_ids.shape)}: this processor is for models that write one token "
                "after the other, in a batch that is not packed; DiffusionGemma is marked by "
                "dllmark.integrations.diffusion_gemma.DllmarkCanvasProcessor"
            )
        if not input_ids.shape[1]:
            return scores  # written from embeddings: there is no token yet
        left = input_ids[:, -1]
        biased = scores.clone()  # `generate` may hand out the unbiased ones
        next_one, this = torch.zeros_like(left)[:, None], torch.ones_like(left, dtype=torch.bool)
        self.mark_block(
            left, this, next_one, ~this[:, None], biased[:, None], this[:, None],
            at=input_ids.shape[1],
        )  # fmt: skip
        return biased
