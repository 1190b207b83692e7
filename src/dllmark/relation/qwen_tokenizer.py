"""Dream's tokenizer, which comes in Qwen2's three files, written as one tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dllmark.errors import TokenizerError

FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
"""What `definition` reads of a folder."""

# How Qwen2 cuts a text before it merges bytes: contractions, words, single digits, signs, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False
}  # fmt: skip
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def definition(folder: Path) -> str:
    """Return the tokenizer.json that gives the same ids as the three files in a folder.

    It has the fields that Qwen2's own tokenizer.json has, so that both get one fingerprint.
    """
    try:
        vocabulary, merges, settings = ((folder / name).read_text("utf-8") for name in FILES)
        ids = dict(json.loads(vocabulary))
        added = [
            {"id": int(id_), "content": token["content"], **{flag: token[flag] for flag in _FLAGS}}
            for id_, token in json.loads(settings)["added_tokens_decoder"].items()
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(
            f"{folder} holds no tokenizer.json, and its {', '.join(FILES)} do not make one "
            f"({type(error).__name__}: {error})"
        ) from None
    added.sort(key=lambda token: token["id"])
    _check_added(ids, added, folder)
    record = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": SPLIT},
                    "behavior": "Isolated",
                    "invert": False,
                },
                _BYTES,
            ],
        },
        "post_processor": _BYTES,
        "decoder": _BYTES,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": ids,
            "merges": [
                line for line in merges.split("\n") if line and not line.startswith("#version")
            ],
        },
    }
    return json.dumps(record, ensure_ascii=False)


def _check_added(ids: dict[str, int], added: list[dict[str, Any]], folder: Path) -> None:
    """Refuse ids with a gap: `tokenizers` would close it and give the tokens other ids."""
    new = [token["id"] for token in added if ids.get(token["content"]) != token["id"]]
    if new != list(range(len(ids), len(ids) + len(new))):
        raise TokenizerError(
            f"the added tokens in {folder / FILES[2]} do not continue the {len(ids)} ids of "
            f"{FILES[0]}: the files belong to different tokenizers"
        )
