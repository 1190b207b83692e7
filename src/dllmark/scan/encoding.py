"""Text to token ids many times faster, where another library is proved to give the same ids.

`fastokens` reads a tokenizer.json and encodes some ten times faster than `tokenizers`. It cuts text
into words with another regular-expression engine, and the engines differ about some characters.
So it is used only for the ways of cutting in `PROVED`, for which a test compares the ids of every
Unicode character in several contexts; any other tokenizer, and any text with a character of
`DIFFERENT`, is left to `tokenizers`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.detector import joined
from dllmark.relation.tokenizer import PIECE, Ids, Tokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PROVED = {_GPT2, _QWEN2}
"""How a tokenizer may cut text into words. The embedded one does as GPT-2 did."""

DIFFERENT = "\u180e"
"""A space to one engine and none to the other."""


def one_thread() -> None:
    """Keep tokenizers to one thread in this process: a scan runs a process for each core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("RAYON_NUM_THREADS", "1")


class Encoder:
    """Encodes many texts into one array, the fastest way that is proved right.

    >>> from dllmark.relation.tokenizer import load_tokenizer
    >>> ids, lengths = Encoder(load_tokenizer("embedded")).encode(["Two words", ""])
    >>> lengths.tolist()
    [2, 0]
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def fast(self) -> Any:
        """The fast tokenizer, or None where there is none that is proved."""
        return fast_tokenizer(self.tokenizer.definition())

    def encode(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of all texts, one behind the other, and how many each has."""
        if self.fast is None:
            return joined(self.tokenizer.encode_many(texts))
        slow = [at for at, text in enumerate(texts) if len(text) > PIECE or DIFFERENT in text]
        rest = [*texts]
        for at in slow:
            rest[at] = ""
        ids, offsets = self.fast.encode_batch_flat(rest)
        flat = np.frombuffer(ids, np.uint32).astype(np.int64)
        ends = np.frombuffer(offsets, np.uint64).astype(np.int64)
        if not slow:
            return flat, np.diff(ends)
        each = np.split(flat, ends[1:-1])
        apart = self.tokenizer.encode_many([texts[at] for at in slow])
        for at, own in zip(slow, apart, strict=True):
            each[at] = own
        return joined(each)


def fast_tokenizer(definition: str) -> Any:
    """Return the tokenizer of a tokenizer.json in `fastokens`, or None where it is not proved."""
    try:
        import fastokens
    except ImportError:
        return None
    record = json.loads(definition)
    steps = (record.get("pre_tokenizer") or {}).get("pretokenizers") or [{}]
    pattern = steps[0].get("pattern", {}).get("Regex", "")
    if (
        [step["type"] for step in steps[1:]] != ["ByteLevel"]
        or steps[0].get("behavior") != "Isolated"
        or steps[0].get("invert")
        or steps[1].get("add_prefix_space")
        or steps[1].get("use_regex")
        or record["model"].get("type") != "BPE"
        or record["model"].get("dropout")
        or (record.get("normalizer") or {"type": "NFC"})["type"] != "NFC"
        or pattern not in PROVED
    ):
        return None
    record["truncation"] = record["padding"] = None
    return fastokens.Tokenizer.from_json_str(json.dumps(record))
