"""Fast-dLLM's loops with its caches, written out again, and a toy that can be called as they do.

Fast-dLLM is not on PyPI. `benchmarks/fast_dllm.py` runs its own files beside these.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from toys import DreamStandIn, Toy


class CachedToy(Toy):
    """A toy whose cache holds the tokens themselves, so that it predicts as without a cache.

    Fast-dLLM's LLaDA keeps keys as [B, heads, L, n], its Dream as [B, L, n]; a shifted toy is a
    Dream.
    """

    def __init__(self, words, vocab_size, shifted=False, **options):
        kind = "Dream" if shifted else "llada"
        super().__init__(words, vocab_size, shifted=shifted, model_type=kind, **options)

    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None,
                use_cache=False, replace_position=None, dual_cache=False):  # fmt: skip
        count = input_ids.shape[1]
        if past_key_values is None:
            whole, rows = input_ids, slice(None)
        else:
            [(keys, _)] = past_key_values
            if replace_position is None:
                whole = torch.cat([keys.flatten(1).long(), input_ids], 1)
                rows = slice(-count, None)
            else:
                rows = replace_position[0].nonzero()[:, 0]
                keys.view(len(input_ids), -1)[:, rows] = input_ids.float()
                whole = keys.flatten(1).long()
        logits = super().forward(whole).logits[:, rows]
        shape = (len(whole), -1, 1) if self.shifted else (len(whole), 1, -1, 1)
        keys = whole.float().view(shape)
        return SimpleNamespace(logits=logits, past_key_values=[(keys, keys)])


class FastDreamStandIn(CachedToy):
    """Stands in for Fast-dLLM's Dream, with both its samplers."""

    deaf = False

    def __init__(self, words, vocab_size, **options):
        super().__init__(words, vocab_size, shifted=True, **options)

    def diffusion_generate(self, inputs, *, max_new_tokens, steps, dual_cache=None, **options):
        if dual_cache is None:
            sizes = {"max_new_tokens": max_new_tokens, "steps": steps}
            return DreamStandIn.diffusion_generate(self, inputs, **sizes, **options)
        sizes = {"gen_length": max_new_tokens, "block_length": max_new_tokens // 2}
        return fast_dllm_generate(
            self, inputs, dual_cache, **sizes, at_once=max_new_tokens // steps
        )


def fast_dllm_generate(model, prompt, dual, gen_length=64, block_length=32, at_once=2):
    """Fast-dLLM's loop at temperature 0: `at_once` tokens a step, a whole call at each block.

    For LLaDA the whole call fills as any other does. For Dream it fills the first of the block.
    """
    mask_id = model.config.mask_token_id
    x = torch.cat([prompt, torch.full((len(prompt), gen_length), mask_id)], 1)
    for start in range(prompt.shape[1], x.shape[1], block_length):
        end = start + block_length
        output = model(x, use_cache=True)
        logits, cache = _unshifted(model, output.logits), output.past_key_values
        if model.shifted:
            x[:, start] = logits[:, start].argmax(-1)
        else:
            _fill(x, logits, mask_id, end, at_once)
        options, part = {}, x[:, start:]
        if dual:
            part = x[:, start:end]
            replaced = torch.zeros_like(x, dtype=torch.bool)
            replaced[:, start:end] = True
            options = {"replace_position": replaced}
        else:
            cache = [tuple(tensor[..., :start, :] for tensor in layer) for layer in cache]
        while (x[:, start:end] == mask_id).any():
            output = model(part, past_key_values=cache, use_cache=True, **options)
            _fill(part, _unshifted(model, output.logits), mask_id, block_length, at_once)
    return x


def _unshifted(model, logits):
    """Logits of each position, from a model that predicts the next."""
    return torch.cat([logits[:, :1], logits[:, :-1]], 1) if model.shifted else logits


def _fill(x, logits, mask_id, end, count):
    """Fill the masks before `end` that the model is surest of, in place."""
    best = logits.argmax(-1)
    sure = logits.softmax(-1).amax(-1).masked_fill(x != mask_id, -torch.inf)
    for row in range(len(x)):
        left = int((x[row, :end] == mask_id).sum())
        chosen = sure[row, :end].topk(min(count, left)).indices
        x[row, chosen] = best[row, chosen]
