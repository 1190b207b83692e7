"""A pretrained causal model as the start of a diffusion model of Dream's shape.

Usage: python training/pretrained.py model.gguf --vocabulary 16384 --out tokenizer.json

Writes the tokenizer with a mask in it, cut to its first ids. The functions read the weights of the
same file and write checkpoints that the Dream loader reads. Needs `pip install gguf`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch import Tensor

from dllmark.models.families import DREAM
from dllmark.models.transformer import Config, Transformer
from dllmark.relation.qwen_tokenizer import SPLIT as QWEN_WORDS
from lora import merged

NEEDED = (*DREAM.ends, "<|im_start|>")
"""The special tokens of a chat; the others of a cut tokenizer make room."""

NEVER = {chr(byte) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}
"""The letters that stand for bytes which no text in UTF-8 holds."""

NAMES = {
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.out": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
"""The parts of a block, in our words and in those of a GGUF file."""


WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2's tokenizer cuts a text, which `tokenizers` also knows without being told."""

KINDS = {"smollm": (WORDS, None), "qwen2": (QWEN_WORDS, {"type": "NFC"})}
"""How a text is cut into words, and what becomes of it before, by a file's `tokenizer.ggml.pre`.

SmolLM2's own tokenizer also takes each digit for a word. The embedded model learned without that.
"""

ENDS = ("bos", "eos", "unknown", "padding")
"""The tokens that a GGUF file names by their ids: special, whatever type it gives them."""


def tokenizer(gguf: Path) -> dict[str, Any]:
    """Return the tokenizer.json of a GGUF file with a byte-level tokenizer.

    It follows from the file alone. A library that converts it words it anew in each version, and
    then a key refuses the tokenizer that it was made with.
    """
    from gguf import GGUFReader, TokenType

    fields = GGUFReader(gguf).fields

    def field(name: str) -> Any:
        if (full := f"tokenizer.ggml.{name}") not in fields:
            raise SystemExit(f"{gguf} has no {full}: give a GGUF file with its tokenizer in it")
        return fields[full].contents()

    if (model := field("model")) != "gpt2":
        raise SystemExit(f"{gguf} has a tokenizer {model!r}: only byte-level ones (gpt2) are read")
    if (kind := field("pre")) not in KINDS:
        raise SystemExit(
            f"{gguf} cuts text into words as {kind!r}, of which only {', '.join(KINDS)} are known: "
            "add it to KINDS in training/pretrained.py"
        )
    names, types = field("tokens"), field("token_type")
    ends = [f"{end}_token_id" for end in ENDS if f"tokenizer.ggml.{end}_token_id" in fields]
    special = {id_ for id_, type_ in enumerate(types) if type_ == TokenType.CONTROL}
    special |= {field(end) for end in ends}
    whole = special | {id_ for id_, type_ in enumerate(types) if type_ == TokenType.USER_DEFINED}
    added = [added_token(id_, names[id_], id_ in special) for id_ in sorted(whole)]
    vocabulary = {name: id_ for id_, name in enumerate(names) if types[id_] != TokenType.UNUSED}
    merges = [merge.split(" ") for merge in field("merges")]
    return tokenizer_json(kind, added, vocabulary, merges)


def added_token(id_: int, content: str, special: bool) -> dict[str, Any]:
    """Return the entry of a token that stands for itself wherever it stands in a text."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id_, "content": content, **flags, "special": special}


def tokenizer_json(
    kind: str, added: list[dict[str, Any]], vocabulary: dict[str, int], merges: list[list[str]]
) -> dict[str, Any]:
    """Return a tokenizer.json, every field in it, in the order in which `tokenizers` writes them.

    It adds no tokens to a text, and says itself how it cuts one into words, as scans need it.
    """
    words, normalizer = KINDS[kind]
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    first, second = ({"Sequence": {"id": name, "type_id": id_}} for id_, name in enumerate("AB"))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {**letters, "use_regex": False}],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first],
            "pair": [first, second],
            "special_tokens": {},
        },
        "decoder": {**letters, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def with_mask(record: dict[str, Any], mask: int) -> dict[str, Any]:
    """Return a tokenizer.json with a mask at this id; ids from there on go."""
    vocabulary = {name: id_ for name, id_ in record["model"]["vocab"].items() if id_ < mask}
    added = [entry for entry in record["added_tokens"] if entry["id"] < mask]
    added.append(added_token(mask, DREAM.mask, special=True))
    model = {**record["model"], "vocab": {**vocabulary, DREAM.mask: mask}}
    return {**record, "added_tokens": added, "model": model}


MESSAGE = DREAM.chat_message.replace("{role}", "{{ message.role }}")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    + MESSAGE.replace("{content}", "{{ message.content }}")
    + f"{{% endfor %}}{{{{ {json.dumps(DREAM.chat_reply)} }}}}"  # jinja2 cuts a bare last newline
)
"""How the model was taught to chat: as Dream, without a system's message of its own."""


def cut(record: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the first `size` ids of a byte-level tokenizer.json as a tokenizer of their own.

    Ids of special tokens that no chat needs become the mask and those bytes that had none, so that
    every text can be written.
    """
    vocabulary = {name: id_ for name, id_ in record["model"]["vocab"].items() if id_ < size}
    special = {entry["content"]: entry for entry in record["added_tokens"] if entry["id"] < size}
    missing = set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys() - NEVER
    spare = sorted(special.keys() - set(NEEDED), key=vocabulary.__getitem__)
    for old, new in zip(spare, [DREAM.mask, *sorted(missing)], strict=False):
        entry, vocabulary[new] = special.pop(old), vocabulary.pop(old)
        if new == DREAM.mask:
            special[new] = {**entry, "content": new}
    ordered = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    merges = [pair for pair in record["model"]["merges"] if "".join(pair) in vocabulary]
    added = sorted(special.values(), key=lambda entry: entry["id"])
    model = {**record["model"], "vocab": ordered, "merges": merges}
    return {**record, "added_tokens": added, "model": model}


def numbers(gguf: Path, vocabulary: int | None) -> Config:
    """Return the numbers of the diffusion model that a GGUF file becomes."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    kind = reader.fields["general.architecture"].contents()

    def field(name: str) -> Any:
        return reader.fields[f"{kind}.{name}"].contents()

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return Config(
        vocab_size=vocabulary or int(tensors["token_embd.weight"].shape[1]),
        width=field("embedding_length"),
        layers=field("block_count"),
        heads=field("attention.head_count"),
        kv_heads=field("attention.head_count_kv"),
        mlp_width=field("feed_forward_length"),
        max_length=field("context_length"),
        rope_theta=field("rope.freq_base"),
        norm_eps=round(field("attention.layer_norm_rms_epsilon"), 9),
        qkv_bias=True,
        tied_head="output.weight" not in tensors,
        shifted=True,
    )


def weights(gguf: Path, config: Config, mask: int) -> dict[str, Tensor]:
    """Return the weights of a GGUF file under our names; biases it lacks are 0.

    The mask starts as the mean of all tokens.
    """
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(gguf)
    turned = reader.fields["general.architecture"].contents() == "llama"
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def read(name: str) -> Tensor:
        tensor = tensors[name]
        found = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
        heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(name.split(".")[-2])
        if turned and heads:  # such files hold the two halves of a head's rows in turns
            found = found.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(found.shape)
        return found

    embedding = read("token_embd.weight")[: config.vocab_size]
    embedding[mask] = embedding.mean(0)
    head = embedding if config.tied_head else read("output.weight")[: config.vocab_size]
    found = {"embedding.weight": embedding, "head.weight": head}
    found["norm.weight"] = read("output_norm.weight")
    for layer in range(config.layers):
        for ours, theirs in NAMES.items():
            whole = f"blk.{layer}.{theirs}"
            found[f"blocks.{layer}.{ours}.weight"] = read(f"{whole}.weight")
            if ours in ("attention.query", "attention.key", "attention.value"):
                rows = found[f"blocks.{layer}.{ours}.weight"].shape[0]
                known = f"{whole}.bias" in tensors
                found[f"blocks.{layer}.{ours}.bias"] = (
                    read(f"{whole}.bias") if known else torch.zeros(rows)
                )
    return found


def export(model: Transformer, tokenizer: str, mask: int, end: int, folder: Path) -> None:
    """Write the folder of a Dream model: weights in bfloat16, config, tokenizer, chat template.

    Adapters that the model learned are merged into its weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names, state = DREAM.parameter_names(model.config), merged(model)
    kept = {new: state[old].to(torch.bfloat16).cpu().contiguous() for old, new in names.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    sizes = {theirs: getattr(model.config, ours) for ours, theirs in DREAM.sizes.items()}
    special = {"mask_token_id": mask, "pad_token_id": end, "dtype": "bfloat16"}
    record = {"model_type": DREAM.model_type, **sizes, **special}
    (folder / "config.json").write_text(json.dumps(record, indent=2) + "\n")
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def main() -> None:
    """Parse the command line and write the tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--vocabulary", type=int, help="keep so many ids; without it, all")
    parser.add_argument("--mask", type=int, default=151_666, help="its id, where all are kept")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    whole, size = tokenizer(arguments.gguf), arguments.vocabulary
    record = cut(whole, size) if size else with_mask(whole, arguments.mask)
    arguments.out.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
