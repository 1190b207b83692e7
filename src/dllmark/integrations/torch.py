"""LLaDA's own `generate.py`, Fast-dLLM's with its caches, and any loop over `model(x).logits`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dllmark.errors import DllmarkError
from dllmark.integrations.marker import Marker, check_whole
from dllmark.marking.strategies import ENGINE_DEFAULT
from dllmark.relation.source import Source
from dllmark.relation.tokenizer import AnyTokenizer


@contextmanager
def watermarked(
    model: nn.Module,
    key: Source,
    strategy: str = ENGINE_DEFAULT.name,
    delta: float | None = None,
    *,
    tokenizer: AnyTokenizer | None = None,
    mask_id: int | None = None,
    shifted: bool | None = None,
    audit: str | Path | None = None,
) -> Iterator[Marker]:
    """Bias what the model predicts for masked positions while the block runs.

        with watermarked(model, "my.key"):
            out = generate(model, prompt, steps=128, gen_length=128)

    `shifted` says that the model predicts the token *after* each position, and that the loop shifts
    the logits itself, as for Dream. The mask and this default to what the model's config says.
    A loop may give the model a cache and only a part of the text, as Fast-dLLM does.
    Leaving the block without a biased token is an error. With `audit`, a block is a request and
    leaves a line in that file.
    """
    config = getattr(model, "config", None)
    mask_id = getattr(config, "mask_token_id", None) if mask_id is None else mask_id
    if mask_id is None:
        raise DllmarkError("the model's config names no mask_token_id: pass the mask as mask_id")
    if shifted is None:
        shifted = getattr(config, "model_type", None) == "Dream"
    marker = Marker(key, strategy, delta, tokenizer=tokenizer, mask_id=mask_id, audit=audit)
    handle = model.register_forward_hook(_Hook(marker, mask_id, shifted), with_kwargs=True)
    try:
        with marker:
            yield marker
    finally:
        handle.remove()


class _Hook:
    """Biases a model's answers, and remembers the last text that the model was shown whole."""

    def __init__(self, marker: Marker, mask_id: int, shifted: bool) -> None:
        self._marker, self._mask_id, self._shifted = marker, mask_id, shifted
        self._length = 0
        self._text: Tensor | None = None
        self._cached: Tensor | None = None  # held, so that no other cache gets its memory

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Bias the masks among the tokens that the model has just been called with."""
        tokens, logits = _tokens(args, kwargs), _logits(output)
        check_whole(tokens, logits)
        if kwargs.get("past_key_values") is None:
            self._mark_whole(tokens, logits, getattr(output, "past_key_values", None))
        else:
            self._mark_part(tokens, logits, kwargs)

    def _mark_whole(self, tokens: Tensor, logits: Tensor, cache: Any) -> None:
        """Bias a whole text [B, L], and remember it if a cache of it was made."""
        masked = tokens == self._mask_id
        if masked[:, 0].any():
            raise DllmarkError(
                "a sequence begins with a mask, as the half of classifier-free guidance that does "
                "not see the prompt: the watermark belongs on the combined logits, which a hook on "
                "the model cannot reach. Turn guidance off; to write without a prompt, put a start "
                "token before the masks"
            )
        if tokens.shape[1] != self._length:  # a longer one may be an answer that is to go on
            self._marker.prompts.forget()
        self._length = tokens.shape[1]
        self._marker.mark(tokens, ~masked, logits, masked, offset=int(self._shifted))
        keys = _keys(cache)
        whole = keys is not None and keys.shape[-2] == tokens.shape[1]
        self._text = tokens.clone() if whole else None  # the loop goes on writing into its own
        self._cached = keys

    def _mark_part(self, tokens: Tensor, logits: Tensor, given: Mapping[str, Any]) -> None:
        """Bias a part [B, N] of a text, with the rest of the text where it is known."""
        left, right = self._beside(tokens, given)
        masked = tokens == self._mask_id
        if self._shifted and masked[:, 0].any():
            raise DllmarkError(
                "the first token of a part is masked, and the logits that predict it belong to the "
                "token before, which the loop left to its cache: fill it from the call without a "
                "cache, as Fast-dLLM does, or use a loop without a cache"
            )
        text = torch.cat([left, tokens, right], 1)
        first = left.shape[1]
        where = torch.zeros_like(text, dtype=torch.bool)
        where[:, first : first + tokens.shape[1]] = masked
        offset = first + int(self._shifted)
        self._marker.mark(text, text != self._mask_id, logits, where, offset, at=None)

    def _beside(self, tokens: Tensor, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the tokens before a part and those after it, [B, 0] where there is none.

        They are those of the text that the cache was made of. A cache that is not the last one the
        model made, or a copy of it, is of a text we do not know.
        """
        count, none = tokens.shape[1], tokens[:, :0]
        keys, replaced = _keys(given["past_key_values"]), given.get("replace_position")
        start = keys.shape[-2] if keys is not None else 0
        if replaced is not None:
            start = _start(replaced, count)
        text = self._text
        if text is None or not _same_memory(keys, self._cached):
            return none, none
        if len(text) != len(tokens) or start + count > text.shape[1]:
            return none, none
        return text[:, :start], text[:, start + count :]


def _keys(cache: Any) -> Tensor | None:
    """Return the keys [..., L, n] of a cache's first layer, if it is a list of pairs."""
    if isinstance(cache, list | tuple) and cache and isinstance(cache[0], list | tuple):
        keys = cache[0][0] if cache[0] else None
        return keys if isinstance(keys, Tensor) and keys.ndim > 2 else None
    return None


def _same_memory(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors share their memory, as a slice does and a copy does not."""
    if one is None or other is None:
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _start(replaced: Tensor, count: int) -> int:
    """Return the first of the positions whose keys a call replaces, [B, L], if they are a run."""
    at = replaced[0].nonzero()[:, 0].tolist()
    if len(at) != count or at[-1] - at[0] != count - 1 or not (replaced == replaced[0]).all():
        raise DllmarkError(
            "the loop calls the model with positions that are not one run of the text, the same in "
            "each text of a batch: their neighbours are not known. Use a loop without a cache, or "
            "dllmark's own `generate`, which has one"
        )
    return int(at[0])


def _tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the tokens a model was called with."""
    tokens = args[0] if args else kwargs.get("input_ids")
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
        raise DllmarkError("the watermark needs a model that is called with token ids [B, L]")
    return tokens


def _logits(output: Any) -> Tensor:
    """Return the logits in a model's output: `.logits`, the output itself, or its first element."""
    logits = getattr(output, "logits", output)
    logits = logits[0] if isinstance(logits, tuple) else logits
    if not isinstance(logits, Tensor):
        raise DllmarkError(f"the model returned no logits but {type(output).__name__}")
    return logits
