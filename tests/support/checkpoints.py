"""Small random checkpoints with the files, field names and tensor names of the real ones."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor

LLADA_SPECIALS = (
    "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip
LLADA2_SPECIALS = ("<|startoftext|>", "<|endoftext|>", "<|mask|>", "<|role_end|>")
SDAR_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<MASK>")
DREAM_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")

CORPUS = ["The grass is green, and the lists are green or red in 2026.", "2026, 2026\n\n  2026"]
ORDINARY = 300  # tokens of the small tokenizer that are not special
ROWS = 320  # of the embedding: more than there are tokens, as in the real models

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def llada_config(**changes: Any) -> dict[str, Any]:
    """Return a config.json as LLaDA writes it, with small numbers."""
    return {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "mlp_hidden_size": 48,
        "max_sequence_length": 64,
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
        "embedding_size": ROWS,
        "vocab_size": ROWS,
        "rope_theta": 500_000.0,
        "rms_norm_eps": 1e-5,
        "weight_tying": False,
        "mask_token_id": ORDINARY + LLADA_SPECIALS.index("<|mdm_mask|>"),
        "eos_token_id": ORDINARY + 1,
        "pad_token_id": ORDINARY + 1,
        **changes,
    }


def dream_config(**changes: Any) -> dict[str, Any]:
    """Return a config.json as Dream writes it, with small numbers."""
    return {
        "model_type": "Dream",
        "architectures": ["DreamModel"],
        "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "vocab_size": ROWS,
        "hidden_act": "silu",
        "rope_theta": 1_000_000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "mask_token_id": ORDINARY + DREAM_SPECIALS.index("<|mask|>"),
        "eos_token_id": ORDINARY,
        "pad_token_id": ORDINARY,
        **changes,
    }


def llada2_config(**changes: Any) -> dict[str, Any]:
    """Return a config.json as LLaDA2 writes it, with small numbers."""
    return {
        "model_type": "llada2_moe",
        "architectures": ["LLaDA2MoeModelLM"],
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "score_function": "sigmoid",
        "max_position_embeddings": 256,
        "vocab_size": ROWS,
        "rope_theta": 600_000,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "use_bias": False,
        "tie_word_embeddings": False,
        "pad_token_id": ORDINARY + 1,
        **changes,
    }


def sdar_config(**changes: Any) -> dict[str, Any]:
    """Return a config.json as SDAR writes it, with small numbers: Qwen3's fields."""
    record = dream_config(
        model_type="sdar", architectures=["SDARForCausalLM"], head_dim=16, attention_bias=False,
        block_size=16, max_position_embeddings=256,
        mask_token_id=ORDINARY + SDAR_SPECIALS.index("<MASK>"),
    )  # fmt: skip
    return {**record, **changes}


def llada_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """Return random weights under LLaDA's names."""
    width, mlp, rows = config["d_model"], config["mlp_hidden_size"], config["embedding_size"]
    keys = width // config["n_heads"] * (config["n_kv_heads"] or config["n_heads"])
    shapes = {"wte": (rows, width), "ln_f": (width,)}
    if not config["weight_tying"]:
        shapes["ff_out"] = (rows, width)
    for block in (f"blocks.{i}" for i in range(config["n_layers"])):
        shapes |= {
            f"{block}.attn_norm": (width,),
            f"{block}.q_proj": (width, width),
            f"{block}.k_proj": (keys, width),
            f"{block}.v_proj": (keys, width),
            f"{block}.attn_out": (width, width),
            f"{block}.ff_norm": (width,),
            f"{block}.ff_proj": (mlp, width),
            f"{block}.up_proj": (mlp, width),
            f"{block}.ff_out": (width, mlp),
        }
    return _random({f"model.transformer.{name}.weight": size for name, size in shapes.items()})


def dream_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """Return random weights under Dream's names, which are Qwen2's."""
    width, mlp, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    keys = width // heads * (config["num_key_value_heads"] or heads)
    shapes = {"model.embed_tokens.weight": (rows, width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (rows, width)
    for layer in (f"model.layers.{i}" for i in range(config["num_hidden_layers"])):
        for name, size in {"q": width, "k": keys, "v": keys}.items():
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (size, width)
            shapes[f"{layer}.self_attn.{name}_proj.bias"] = (size,)
        shapes |= {
            f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.self_attn.o_proj.weight": (width, width),
            f"{layer}.post_attention_layernorm.weight": (width,),
            f"{layer}.mlp.gate_proj.weight": (mlp, width),
            f"{layer}.mlp.up_proj.weight": (mlp, width),
            f"{layer}.mlp.down_proj.weight": (width, mlp),
        }
    return _random(shapes)


def llada2_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """Return random weights under LLaDA2's names."""
    width, rows, head = config["hidden_size"], config["vocab_size"], config["head_dim"]
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.word_embeddings.weight": (rows, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (rows, width),
    }
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.attention.query_key_value.weight": ((heads + 2 * keys) * head, width),
            f"{layer}.attention.query_layernorm.weight": (head,),
            f"{layer}.attention.key_layernorm.weight": (head,),
            f"{layer}.attention.dense.weight": (width, heads * head),
            f"{layer}.post_attention_layernorm.weight": (width,),
        }
        feeds = {f"{layer}.mlp": config["intermediate_size"]}
        if number >= config["first_k_dense_replace"]:
            inner, count = config["moe_intermediate_size"], config["num_experts"]
            shapes[f"{layer}.mlp.gate.weight"] = (count, width)
            shapes[f"{layer}.mlp.gate.expert_bias"] = (count,)
            feeds = {f"{layer}.mlp.experts.{expert}": inner for expert in range(count)}
            if config["num_shared_experts"]:
                feeds[f"{layer}.mlp.shared_experts"] = inner * config["num_shared_experts"]
        for name, inner in feeds.items():
            shapes |= {
                f"{name}.gate_proj.weight": (inner, width),
                f"{name}.up_proj.weight": (inner, width),
                f"{name}.down_proj.weight": (width, inner),
            }
    return _random(shapes)


def sdar_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """Return random weights under SDAR's names, which are Qwen3's."""
    width, head = config["hidden_size"], config["head_dim"]
    sizes = {name: config[f"num_{name}_heads"] * head for name in ("attention", "key_value")}
    kept = {n: t.shape for n, t in dream_weights(config).items() if "self_attn" not in n}
    for layer in (f"model.layers.{i}.self_attn" for i in range(config["num_hidden_layers"])):
        kept |= {
            f"{layer}.q_proj.weight": (sizes["attention"], width),
            f"{layer}.k_proj.weight": (sizes["key_value"], width),
            f"{layer}.v_proj.weight": (sizes["key_value"], width),
            f"{layer}.o_proj.weight": (width, sizes["attention"]),
            f"{layer}.q_norm.weight": (head,),
            f"{layer}.k_norm.weight": (head,),
        }
    return _random(kept)


def _random(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=random) * 0.2 for name, shape in shapes.items()}


def llama_name(name: str) -> str:
    """Return what `transformers` calls a tensor of LLaDA in a LLaMA model."""
    for theirs, llama in {
        "model.transformer.wte": "model.embed_tokens",
        "model.transformer.ln_f": "model.norm",
        "model.transformer.ff_out": "lm_head",
        "model.transformer.blocks": "model.layers",
        "attn_norm": "input_layernorm",
        "q_proj": "self_attn.q_proj",
        "k_proj": "self_attn.k_proj",
        "v_proj": "self_attn.v_proj",
        "attn_out": "self_attn.o_proj",
        "ff_norm": "post_attention_layernorm",
        "ff_proj": "mlp.gate_proj",
        "up_proj": "mlp.up_proj",
        "ff_out": "mlp.down_proj",
    }.items():
        name = name.replace(theirs, llama)
    return name


@lru_cache
def small_bpe() -> dict[str, Any]:
    """Return the record of a byte-level BPE tokenizer trained on a few words."""
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=ORDINARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    record: dict[str, Any] = json.loads(tokenizer.to_str())
    return record


def tokenizer_json(specials: tuple[str, ...], ordinary: int = ORDINARY) -> str:
    """Return a tokenizer.json with so many ordinary tokens and the special ones after them."""
    record = json.loads(json.dumps(small_bpe()))
    vocabulary = record["model"]["vocab"]
    vocabulary |= {f"unused{id_}": id_ for id_ in range(len(vocabulary), ordinary)}
    record["added_tokens"] = [
        {"id": ordinary + place, "content": content, **FLAGS, "special": True}
        for place, content in enumerate(specials)
    ]
    return json.dumps(record)


def write_qwen_files(folder: Path, definition: str) -> None:
    """Write a tokenizer.json as the three files that Qwen2 and Dream come with."""
    record = json.loads(definition)
    merges = [" ".join(merge) for merge in record["model"]["merges"]]
    added = {str(token.pop("id")): token for token in record["added_tokens"]}
    (folder / "vocab.json").write_text(json.dumps(record["model"]["vocab"]), "utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))


def write_weights(folder: Path, weights: dict[str, Tensor], shards: int = 1) -> None:
    """Write weights as one safetensors file, or as shards with an index."""
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return
    places = {}
    for number in range(shards):
        part = dict(list(weights.items())[number::shards])
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / name)
        places |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def write_checkpoint(folder: Path, config: dict[str, Any], shards: int = 1) -> dict[str, Tensor]:
    """Write a whole checkpoint and return its weights."""
    make, specials = {
        "llada": (llada_weights, LLADA_SPECIALS),
        "Dream": (dream_weights, DREAM_SPECIALS),
        "llada2_moe": (llada2_weights, LLADA2_SPECIALS),
        "sdar": (sdar_weights, SDAR_SPECIALS),
    }[config["model_type"]]
    weights = make(config)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer_json(specials))
    write_weights(folder, weights, shards)
    return weights
