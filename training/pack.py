"""Tokenise corpora into one flat array of ids that training reads windows from.

Usage: python training/pack.py corpus/teacher.jsonl.xz --tokenizer tokenizer.json --out packed/

For each corpus writes NAME.tokens.npy (every document, in random order, closed by an end of text)
and NAME.starts.npy (where a window may begin: at a document, and every 256 tokens inside a long
one); and the same for the rows held out, as NAME.held_out.*.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from corpus import held_out_rows, training_rows

EVERY = 256
SENTENCE_END = re.compile(r"[.!?][\"”'’)]*(?=\s|$)")


def finished(text: str) -> str:
    """Return a text up to the end of its last whole sentence.

    The teacher's texts were cut at a number of tokens; an unfinished last sentence is left out, so
    that the model learns to end where a sentence does.
    """
    text = text.strip()
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else text


def document(row: dict[str, str]) -> str:
    """Return a row as the model reads it: a chat where there is a prompt, and plain text else."""
    text = finished(row["text"])
    return f"<|user|>{row['prompt']}<|assistant|>{text}" if "prompt" in row else text


def batches(rows: Iterable[dict[str, str]], size: int = 10_000) -> Iterator[list[str]]:
    """Group documents for the tokenizer."""
    documents = (document(row) for row in rows)
    while batch := list(itertools.islice(documents, size)):
        yield batch


def pack(
    rows: Iterable[dict[str, str]], tokenizer: Tokenizer
) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """Return the ids of all documents, shuffled, and where windows may start."""
    end = tokenizer.token_to_id("<|endoftext|>")
    pieces = [
        np.array([*encoding.ids, end], dtype=np.uint16)
        for batch in batches(rows)
        for encoding in tokenizer.encode_batch_fast(batch)
    ]
    order = np.random.default_rng(0).permutation(len(pieces))
    pieces = [pieces[index] for index in order]
    offsets = np.cumsum([0, *map(len, pieces)])
    starts = [
        np.arange(offset, offset + max(1, len(piece) - EVERY // 2), EVERY)
        for offset, piece in zip(offsets, pieces, strict=False)
    ]
    return np.concatenate(pieces), np.concatenate(starts)


def main() -> None:
    """Pack each corpus named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    for path in arguments.corpora:
        name = path.name.split(".")[0]
        for split, rows in (("", training_rows(path)), (".held_out", held_out_rows(path))):
            tokens, starts = pack(rows, tokenizer)
            np.save(arguments.out / f"{name}{split}.tokens.npy", tokens)
            np.save(arguments.out / f"{name}{split}.starts.npy", starts)
            print(f"{name}{split}: {len(tokens):,} tokens, {len(starts):,} windows", flush=True)


if __name__ == "__main__":
    main()
