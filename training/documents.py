"""Tokenise corpora into rows of one document each, as training/adapt.py reads them.

Usage: python training/documents.py corpus/*.jsonl.xz --tokenizer tokenizer.json --out packed/

For each corpus writes NAME.tokens.npy, all ids one after the other, and NAME.rows.npy [N, 3]: where
a row starts in it, how many tokens it has, and how many of them are the prompt. Rows with a prompt
become "chats". A long document is several rows. The rows held out are in NAME.held_out.*.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from dllmark.models.families import DREAM
from dllmark.quality.repetition import repeated_ngrams

LONGEST = 512
"""Tokens of a row at most."""

HOLD_OUT_EVERY = 100
"""One row in this many is never trained on; evaluation uses exactly those rows."""

SENTENCE_END = re.compile(r"[.!?][\"”'’)]*(?=\s|$)")

CHAT = replace(DREAM, chat_start="")
"""Dream's chat without its system's message, which a small model need not read each time."""

Packed = tuple[NDArray[np.uint32], NDArray[np.int64]]


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of one corpus file in order."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def training_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows that may be trained on."""
    return (row for number, row in enumerate(rows(path)) if number % HOLD_OUT_EVERY)


def held_out_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows kept for evaluation."""
    return (row for number, row in enumerate(rows(path)) if not number % HOLD_OUT_EVERY)


def finished(text: str) -> str:
    """Return a text up to the end of its last whole sentence.

    The teacher's texts were cut at a number of tokens; an unfinished last sentence is left out, so
    that the model learns to end where a sentence does.
    """
    text = text.strip()
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else text


def encode(rows: list[dict[str, str]], tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """Return the ids of each row's prompt and text, both closed as the model shall close them."""
    prompts = [CHAT.chat(row["prompt"]) if "prompt" in row else "" for row in rows]
    ends = [DREAM.ends[1] if prompt else DREAM.ends[0] for prompt in prompts]
    texts = [finished(row["text"]) + end for row, end in zip(rows, ends, strict=True)]
    before, after = tokenizer.encode_batch_fast(prompts), tokenizer.encode_batch_fast(texts)
    return [(one.ids, other.ids) for one, other in zip(before, after, strict=True)]


def pack(rows: Iterable[dict[str, str]], tokenizer: Tokenizer, most: float) -> dict[str, Packed]:
    """Return tokens and rows of chats and of plain texts.

    Left out is a text of a model (it names its "kind") of whose 4-grams more than the share `most`
    stood in it before.
    """
    tokens: dict[str, list[NDArray[np.uint32]]] = {"chats": [], "texts": []}
    places: dict[str, list[tuple[int, int, int]]] = {"chats": [], "texts": []}
    bases = {"chats": 0, "texts": 0}
    given = iter(rows)
    while part := list(itertools.islice(given, 5000)):
        for row, (prompt, text) in zip(part, encode(part, tokenizer), strict=True):
            if "kind" in row and repeated_ngrams(text, 4) > most:
                continue
            kind = "chats" if prompt else "texts"
            whole = np.array(prompt + text, np.uint32)
            tokens[kind].append(whole)
            for at in range(0, max(1, len(whole) - LONGEST // 4), LONGEST):
                size = min(LONGEST, len(whole) - at)
                places[kind].append((bases[kind] + at, size, 0 if at else len(prompt)))
            bases[kind] += len(whole)
    return {
        kind: (np.concatenate(tokens[kind]), np.array(places[kind], np.int64))
        for kind in tokens
        if places[kind]
    }


class Rows:
    """The packed documents of one corpus, on the training device.

    Left out are those of which fewer than `shortest` tokens are no prompt.
    """

    def __init__(self, folder: Path, name: str, end: int, device: str, shortest: int = 0) -> None:
        tokens = np.load(folder / f"{name}.tokens.npy").astype(np.int32)
        padding = np.full(LONGEST, end, np.int32)
        self.tokens = torch.from_numpy(np.concatenate([tokens, padding])).to(device)
        rows = np.load(folder / f"{name}.rows.npy")
        self.rows = torch.from_numpy(rows[rows[:, 1] - rows[:, 2] >= shortest]).to(device)
        self.end = end

    def draw(self, count: int, length: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return tokens [count, length], and [count, 2]: how many are a document, and its prompt.

        What follows a document is filled with ends of text.
        """
        chosen = torch.randint(len(self.rows), (count,), generator=random, device=random.device)
        start, size, prompt = self.rows[chosen].T
        span = torch.arange(length, device=random.device)
        tokens = self.tokens[(start[:, None] + span).clamp(max=len(self.tokens) - 1)].long()
        size = size.clamp(max=length)
        tokens = torch.where(span < size[:, None], tokens, self.end)
        return tokens, torch.stack([size, prompt.clamp(max=length)], 1)


def main() -> None:
    """Pack each corpus named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--most", type=float, default=0.12, help="share of repeated 4-grams")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    kind = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    for path in arguments.corpora:
        name = path.name.split(".")[0]
        for split, rows in (("", training_rows(path)), (".held_out", held_out_rows(path))):
            most = arguments.most if not split else 1.0
            for what, (tokens, places) in pack(rows, tokenizer, most).items():
                called = f"{'chats' if what == 'chats' else name}{split}"
                np.save(arguments.out / f"{called}.tokens.npy", tokens.astype(kind))
                np.save(arguments.out / f"{called}.rows.npy", places)
                print(f"{called}: {len(tokens):,} tokens in {len(places):,} rows", flush=True)


if __name__ == "__main__":
    main()
