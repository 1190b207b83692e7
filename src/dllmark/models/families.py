"""The model families as data: sizes, checkpoint names, special tokens and chat template."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dllmark.models.experts import Experts
from dllmark.models.transformer import Config


@dataclass(frozen=True)
class Family:
    """What tells one family of checkpoints from another.

    `sizes` maps our `Config` fields to the names in config.json, `expert_sizes` those of `Experts`;
    `fixed` gives those that the family does not write there. `names` maps our parameters to the
    checkpoint's, with {i} for the number of a block and {e} for that of an expert.

    `arithmetic` has the fields of config.json that change what is computed, each with the only
    value supported and the one that the published code takes where it is absent.

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
    chat_roles: dict[str, str] = field(default_factory=dict)
    expert_sizes: dict[str, str] = field(default_factory=dict)

    def config(self, record: dict[str, Any]) -> Config:
        """Build the numbers of a model from its config.json."""
        sizes = {ours: record[theirs] for ours, theirs in self.sizes.items() if theirs in record}
        if self.expert_sizes:
            experts = {ours: record[theirs] for ours, theirs in self.expert_sizes.items()}
            sizes["experts"] = Experts(**experts)
        return Config(**{**self.fixed, **sizes})

    def chat(self, question: str) -> str:
        """Write a user's question the way the family was trained to answer it."""
        return self.conversation([("user", question)])

    def conversation(self, messages: Sequence[tuple[str, str]]) -> str:
        """Write messages, each a role and a text, the way the family was trained to go on with.

        A system's message replaces the one that a family (Dream) starts with by itself. Where a
        family knows no system, its message counts as the user's, and messages of one side in a row
        become one, with a blank line between them.

        >>> print(EMBEDDED.conversation([("user", "Hi"), ("assistant", "Hello.")]))
        <|im_start|>user
        Hi<|im_end|>
        <|im_start|>assistant
        Hello.<|im_end|>
        <|im_start|>assistant
        <BLANKLINE>
        """
        if not self.chat_system:
            messages = _two_sides(messages)
        replaced = messages[0][0] == "system" and "system" in self.chat_start
        text = "" if replaced else self.chat_start
        for role, given in messages:
            content = given.strip() if self.chat_trim else given
            name = self.chat_roles.get(role, role)
            text += self.chat_message.replace("{role}", name).replace("{content}", content)
        return text + self.chat_reply

    def parameter_names(self, config: Config) -> dict[str, str]:
        """Return the checkpoint's name of every parameter of `Transformer`.

        A name with {e} is that of many tensors, an expert's each, which make one parameter.
        """
        names = {}
        for ours, theirs in self.names.items():
            if "bias" in ours and not config.qkv_bias:
                continue
            if ours == "head.weight" and config.tied_head:
                continue
            if ".shared_" in ours and not (config.experts and config.experts.shared):
                continue
            for i in _layers(ours, config):
                names[ours.replace("{i}", str(i))] = theirs.replace("{i}", str(i))
        return names


def _layers(ours: str, config: Config) -> Sequence[int]:
    """Return the numbers of the blocks that have a parameter, or one number if it is of none."""
    if "{i}" not in ours:
        return [0]
    first = config.layers if config.experts is None else config.experts.first_layer
    if ".experts." in ours:
        return range(first, config.layers)
    feeds_forward = ours.removeprefix("blocks.{i}.").startswith(("gate.", "up.", "down."))
    return range(first if feeds_forward else config.layers)


def _two_sides(messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return a conversation of user and assistant alone, who take turns."""
    sides = [("user" if role == "system" else role, content) for role, content in messages]
    turns = itertools.groupby(sides, key=lambda message: message[0])
    return [(role, "\n\n".join(content for _, content in turn)) for role, turn in turns]


def _in_blocks(prefix: str, names: dict[str, str]) -> dict[str, str]:
    """Return the names of a block's parameters, with what stands before them in a checkpoint."""
    return {f"blocks.{{i}}.{ours}": prefix + theirs for ours, theirs in names.items()}


LLADA = Family(
    name="LLaDA",
    model_type="llada",
    sizes={
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
    },
    fixed={"rope_theta": 10_000.0, "norm_eps": 1e-5, "tied_head": True},
    names={
        "embedding.weight": "model.transformer.wte.weight",
        "norm.weight": "model.transformer.ln_f.weight",
        "head.weight": "model.transformer.ff_out.weight",
        **_in_blocks(
            "model.transformer.blocks.{i}.",
            {
                "attention_norm.weight": "attn_norm.weight",
                "attention.query.weight": "q_proj.weight",
                "attention.key.weight": "k_proj.weight",
                "attention.value.weight": "v_proj.weight",
                "attention.out.weight": "attn_out.weight",
                "mlp_norm.weight": "ff_norm.weight",
                "gate.weight": "ff_proj.weight",
                "up.weight": "up_proj.weight",
                "down.weight": "ff_out.weight",
            },
        ),
    },
    arithmetic={
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
    },
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
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
        **_in_blocks(
            "model.layers.{i}.",
            {
                "attention_norm.weight": "input_layernorm.weight",
                "attention.query.weight": "self_attn.q_proj.weight",
                "attention.query.bias": "self_attn.q_proj.bias",
                "attention.key.weight": "self_attn.k_proj.weight",
                "attention.key.bias": "self_attn.k_proj.bias",
                "attention.value.weight": "self_attn.v_proj.weight",
                "attention.value.bias": "self_attn.v_proj.bias",
                "attention.out.weight": "self_attn.o_proj.weight",
                "mlp_norm.weight": "post_attention_layernorm.weight",
                "gate.weight": "mlp.gate_proj.weight",
                "up.weight": "mlp.up_proj.weight",
                "down.weight": "mlp.down_proj.weight",
            },
        ),
    },
    mask="<|mask|>",
    ends=("<|endoftext|>", "<|im_end|>"),
    chat_start="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
    chat_message="<|im_start|>{role}\n{content}<|im_end|>\n",
    chat_reply="<|im_start|>assistant\n",
)

LLADA2 = Family(
    name="LLaDA2",
    model_type="llada2_moe",
    sizes={**DREAM.sizes, "head_dim": "head_dim", "rotary_share": "partial_rotary_factor"},
    expert_sizes={
        "count": "num_experts",
        "chosen": "num_experts_per_tok",
        "width": "moe_intermediate_size",
        "shared": "num_shared_experts",
        "groups": "n_group",
        "groups_chosen": "topk_group",
        "scale": "routed_scaling_factor",
        "first_layer": "first_k_dense_replace",
    },
    fixed={
        "rope_theta": 10_000.0,
        "norm_eps": 1e-5,
        "rotary_share": 0.5,
        "qk_norm": True,
        "joint_qkv": True,
        "block_causal": True,
    },
    names={
        "embedding.weight": "model.word_embeddings.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
        **_in_blocks(
            "model.layers.{i}.",
            {
                "attention_norm.weight": "input_layernorm.weight",
                "attention.qkv.weight": "attention.query_key_value.weight",
                "attention.query_norm.weight": "attention.query_layernorm.weight",
                "attention.key_norm.weight": "attention.key_layernorm.weight",
                "attention.out.weight": "attention.dense.weight",
                "mlp_norm.weight": "post_attention_layernorm.weight",
                "gate.weight": "mlp.gate_proj.weight",
                "up.weight": "mlp.up_proj.weight",
                "down.weight": "mlp.down_proj.weight",
                "experts.router": "mlp.gate.weight",
                "experts.correction": "mlp.gate.expert_bias",
                "experts.gate": "mlp.experts.{e}.gate_proj.weight",
                "experts.up": "mlp.experts.{e}.up_proj.weight",
                "experts.down": "mlp.experts.{e}.down_proj.weight",
                "experts.shared_gate.weight": "mlp.shared_experts.gate_proj.weight",
                "experts.shared_up.weight": "mlp.shared_experts.up_proj.weight",
                "experts.shared_down.weight": "mlp.shared_experts.down_proj.weight",
            },
        ),
    },
    arithmetic={
        "hidden_act": ("silu", "silu"),
        "use_sliding_window": (False, False),
        "use_qk_norm": (True, True),
        "use_qkv_bias": (False, False),
        "use_bias": (False, False),
        "use_rmsnorm": (True, True),
        "norm_head": (False, False),
        "norm_softmax": (False, False),
        "norm_topk_prob": (True, True),
        "score_function": ("sigmoid", "sigmoid"),
        "moe_router_enable_expert_bias": (True, True),
    },
    mask="<|mask|>",
    ends=("<|endoftext|>", "<|role_end|>"),
    chat_start="<role>SYSTEM</role>detailed thinking off<|role_end|>",
    chat_message="<role>{role}</role>{content}<|role_end|>",
    chat_reply="<role>ASSISTANT</role>",
    chat_system=False,
    chat_roles={"user": "HUMAN", "assistant": "ASSISTANT"},
)

SDAR = Family(
    name="SDAR",
    model_type="sdar",
    sizes={**DREAM.sizes, "head_dim": "head_dim", "block_length": "block_size"},
    fixed={"rope_theta": 10_000.0, "norm_eps": 1e-6, "qk_norm": True, "block_causal": True},
    names=DREAM.names
    | _in_blocks(
        "model.layers.{i}.",
        {
            "attention.query_norm.weight": "self_attn.q_norm.weight",
            "attention.key_norm.weight": "self_attn.k_norm.weight",
        },
    ),
    arithmetic={**DREAM.arithmetic, "attention_bias": (False, False)},
    mask="<MASK>",
    ends=("<|endoftext|>", "<|im_end|>"),
    chat_start="",
    chat_message=DREAM.chat_message,
    chat_reply=DREAM.chat_reply,
)

EMBEDDED = replace(
    DREAM,
    name="embedded",
    model_type="dllmark",
    ends=(*DREAM.ends, "<|im_start|>"),
    chat_start="",
    chat_system=False,
)
"""The model in the package: of Dream's shape, taught chats of two sides; another turn is an end."""

FAMILIES = {family.model_type: family for family in (LLADA, DREAM, LLADA2, SDAR, EMBEDDED)}
"""The families by the `model_type` of their config.json."""
