"""The model families as data: sizes, checkpoint names, special tokens and chat template."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dllmark.models.transformer import Config


@dataclass(frozen=True)
class Family:
    """What tells one family of checkpoints from another.

    `sizes` maps our `Config` fields to the names in config.json, `fixed` gives those that the
    family does not write there. `names` maps our parameters to the checkpoint's, with {i} for the
    number of a block. `arithmetic` has the fields of config.json that change what is computed, each
    with the only value supported and the one that the published code takes where it is absent.

    The chat template, for a checkpoint without one, is three strings; "{role}" and "{content}" are
    filled in. Some templates have no role for a system's message; LLaDA's trims every message.
    """

    name: str
    model_type: str
    sizes: dict[str, str]
    fixed: dict[str, Any]
    names: dict[str, str]
    arithmetic: dict[str, tuple[Any, Any]]
    mask: str
    ends: tuple[str, ...]
    chat_start: str
    chat_message: str
    chat_reply: str
    chat_system: bool = True
    chat_trim: bool = False

    def config(self, record: dict[str, Any]) -> Config:
        """Build the numbers of a model from its config.json."""
        sizes = {ours: record[theirs] for ours, theirs in self.sizes.items() if theirs in record}
        return Config(**{**self.fixed, **sizes})

    def chat(self, question: str) -> str:
        """Write a user's question the way the family was trained to answer it."""
        return self.conversation([("user", question)])

    def conversation(self, messages: Sequence[tuple[str, str]]) -> str:
        """Write messages, each a role and a text, the way the family was trained to go on with.

        A system's message replaces the one that a family (Dream) starts with by itself. Where a
        family knows no system, its message counts as the user's, and messages of one side in a row
        become one, with a blank line between them.

        >>> EMBEDDED.conversation([("user", "Hi"), ("assistant", "Hello."), ("user", "Who?")])
        '<|user|>Hi<|assistant|>Hello.<|user|>Who?<|assistant|>'
        """
        if not self.chat_system:
            messages = _two_sides(messages)
        replaced = messages[0][0] == "system" and "system" in self.chat_start
        text = "" if replaced else self.chat_start
        for role, given in messages:
            content = given.strip() if self.chat_trim else given
            text += self.chat_message.replace("{role}", role).replace("{content}", content)
        return text + self.chat_reply

    def parameter_names(self, config: Config) -> dict[str, str]:
        """Return the checkpoint's name of every parameter of `Transformer`."""
        names = {}
        for ours, theirs in self.names.items():
            if "bias" in ours and not config.qkv_bias:
                continue
            if ours == "head.weight" and config.tied_head:
                continue
            numbers = range(config.layers) if "{i}" in ours else [0]
            names.update({ours.format(i=i): theirs.format(i=i) for i in numbers})
        return names


def _two_sides(messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return a conversation of user and assistant alone, who take turns."""
    sides = [("user" if role == "system" else role, content) for role, content in messages]
    turns = itertools.groupby(sides, key=lambda message: message[0])
    return [(role, "\n\n".join(content for _, content in turn)) for role, turn in turns]


_LLADA_NAMES = {
    "embedding.weight": "model.transformer.wte.weight",
    "blocks.{i}.attention_norm.weight": "model.transformer.blocks.{i}.attn_norm.weight",
    "blocks.{i}.attention.query.weight": "model.transformer.blocks.{i}.q_proj.weight",
    "blocks.{i}.attention.key.weight": "model.transformer.blocks.{i}.k_proj.weight",
    "blocks.{i}.attention.value.weight": "model.transformer.blocks.{i}.v_proj.weight",
    "blocks.{i}.attention.out.weight": "model.transformer.blocks.{i}.attn_out.weight",
    "blocks.{i}.mlp_norm.weight": "model.transformer.blocks.{i}.ff_norm.weight",
    "blocks.{i}.gate.weight": "model.transformer.blocks.{i}.ff_proj.weight",
    "blocks.{i}.up.weight": "model.transformer.blocks.{i}.up_proj.weight",
    "blocks.{i}.down.weight": "model.transformer.blocks.{i}.ff_out.weight",
    "norm.weight": "model.transformer.ln_f.weight",
    "head.weight": "model.transformer.ff_out.weight",
}

_LLADA_SIZES = {
    "vocab_size": "embedding_size",
    "width": "d_model",
    "layers": "n_layers",
    "heads": "n_heads",
    "kv_heads": "n_kv_heads",
    "mlp_width": "mlp_hidden_size",
    "max_length": "max_sequence_length",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tied_head": "weight_tying",
}

_LLADA_ARITHMETIC = {
    "block_type": ("llama", "sequential"),
    "activation_type": ("silu", "swiglu"),
    "layer_norm_type": ("rms", "default"),
    "layer_norm_with_affine": (True, True),
    "bias_for_layer_norm": (False, False),
    "attention_layer_norm": (False, False),
    "input_emb_norm": (False, False),
    "include_bias": (False, False),
    "include_qkv_bias": (False, False),
    "multi_query_attention": (False, False),
    "block_group_size": (1, 1),
    "rope": (True, False),
    "alibi": (False, False),
    "scale_logits": (False, False),
}

LLADA = Family(
    name="LLaDA",
    model_type="llada",
    sizes=_LLADA_SIZES,
    fixed={"rope_theta": 10_000.0, "norm_eps": 1e-5, "tied_head": True},
    names=_LLADA_NAMES,
    arithmetic=_LLADA_ARITHMETIC,
    mask="<|mdm_mask|>",
    ends=("<|endoftext|>", "<|eot_id|>"),
    chat_start="<|startoftext|>",
    chat_message="<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
    chat_reply="<|start_header_id|>assistant<|end_header_id|>\n\n",
    chat_trim=True,
)

DREAM = Family(
    name="Dream",
    model_type="Dream",
    sizes={
        "vocab_size": "vocab_size",
        "width": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "mlp_width": "intermediate_size",
        "max_length": "max_position_embeddings",
        "rope_theta": "rope_theta",
        "norm_eps": "rms_norm_eps",
        "tied_head": "tie_word_embeddings",
    },
    fixed={"rope_theta": 10_000.0, "norm_eps": 1e-6, "qkv_bias": True, "shifted": True},
    arithmetic={"hidden_act": ("silu", "silu"), "use_sliding_window": (False, False)},
    names={
        "embedding.weight": "model.embed_tokens.weight",
        "blocks.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
        "blocks.{i}.attention.query.weight": "model.layers.{i}.self_attn.q_proj.weight",
        "blocks.{i}.attention.query.bias": "model.layers.{i}.self_attn.q_proj.bias",
        "blocks.{i}.attention.key.weight": "model.layers.{i}.self_attn.k_proj.weight",
        "blocks.{i}.attention.key.bias": "model.layers.{i}.self_attn.k_proj.bias",
        "blocks.{i}.attention.value.weight": "model.layers.{i}.self_attn.v_proj.weight",
        "blocks.{i}.attention.value.bias": "model.layers.{i}.self_attn.v_proj.bias",
        "blocks.{i}.attention.out.weight": "model.layers.{i}.self_attn.o_proj.weight",
        "blocks.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
        "blocks.{i}.gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
        "blocks.{i}.up.weight": "model.layers.{i}.mlp.up_proj.weight",
        "blocks.{i}.down.weight": "model.layers.{i}.mlp.down_proj.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    },
    mask="<|mask|>",
    ends=("<|endoftext|>", "<|im_end|>"),
    chat_start="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
    chat_message="<|im_start|>{role}\n{content}<|im_end|>\n",
    chat_reply="<|im_start|>assistant\n",
)

EMBEDDED = Family(
    name="embedded",
    model_type="dllmark",
    sizes=_LLADA_SIZES,
    fixed={},
    names=_LLADA_NAMES,
    arithmetic={},
    mask="<|mask|>",
    ends=("<|endoftext|>", "<|user|>"),
    chat_start="",
    chat_message="<|{role}|>{content}",
    chat_reply="<|assistant|>",
    chat_system=False,
)

FAMILIES = {family.model_type: family for family in (LLADA, DREAM, EMBEDDED)}
"""The families by the `model_type` of their config.json."""
