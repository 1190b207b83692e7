"""LLaDA's own `generate.py`, and any loop that calls `model(x).logits` on the whole sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from dllmark.errors import DllmarkError
from dllmark.integrations.marker import Marker
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
) -> Iterator[Marker]:
    """Bias what the model predicts for masked positions while the block runs.

        with watermarked(model, "my.key"):
            out = generate(model, prompt, steps=128, gen_length=128)

    `shifted` says that the model predicts the token *after* each position, and that the loop shifts
    the logits itself, as for Dream. The mask and this default to what the model's config says.
    Leaving the block without a biased token is an error.
    """
    config = getattr(model, "config", None)
    mask_id = getattr(config, "mask_token_id", None) if mask_id is None else mask_id
    if mask_id is None:
        raise DllmarkError("the model's config names no mask_token_id: pass the mask as mask_id")
    if shifted is None:
        shifted = getattr(config, "model_type", None) == "Dream"
    marker = Marker(key, strategy, delta, tokenizer=tokenizer, mask_id=mask_id)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tokens = _tokens(args, kwargs)
        masked = tokens == mask_id
        if masked[:, 0].any():
            raise DllmarkError(
                "a sequence begins with a mask, as the half of classifier-free guidance that does "
                "not see the prompt: the watermark belongs on the combined logits, which a hook on "
                "the model cannot reach. Turn guidance off; to write without a prompt, put a start "
                "token before the masks"
            )
        marker.mark(tokens, ~masked, _logits(output), masked, offset=int(shifted))

    handle = model.register_forward_hook(hook, with_kwargs=True)
    try:
        with marker:
            yield marker
    finally:
        handle.remove()


def _tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the tokens a model was called with, if they are the whole sequence."""
    if kwargs.get("past_key_values") is not None:
        raise DllmarkError(
            "the loop gives the model a cache and only some of the tokens, so their neighbours are "
            "not known: use a loop without a cache, or dllmark's own `generate`, which has one"
        )
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
