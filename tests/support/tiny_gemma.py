"""A small DiffusionGemma of transformers' own class, with random weights."""

from __future__ import annotations

import warnings

import torch

with warnings.catch_warnings():  # `generate` imports it; torch warns of itself there
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch._inductor.cudagraph_trees


def tiny_gemma(vocab_size, canvas=32, allowed=None):
    """A model that is sure enough of what it writes for adaptive stopping to stop.

    It writes all tokens, or those allowed.
    """
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    torch.manual_seed(1)
    text = {
        "vocab_size": vocab_size, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
        "global_head_dim": 16, "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64, "num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 16,
        "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1,
    }  # fmt: skip
    vision = {
        "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=canvas,
        image_token_id=0, boi_token_id=0, eoi_token_id=0,
    )  # fmt: skip
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    with torch.no_grad():  # random logits are flat: what is written would be noise
        weight = model.model.decoder.embed_tokens.weight
        weight *= 50
        if allowed is not None:  # the others have a logit of 0, and the best word a large one
            others = torch.ones(vocab_size, dtype=torch.bool)
            others[allowed] = False
            weight[others] = 0
    return model.requires_grad_(False)
