"""Train the embedded model's tokenizer: a byte-level BPE, written as tokenizer.json.

python training/tokenizer.py corpus/*.jsonl.xz --out tokenizer.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from corpus import training_rows

SPECIAL_TOKENS = ["<|pad|>", "<|endoftext|>", "<|mask|>", "<|user|>", "<|assistant|>"]

# A contraction, a word with its leading space, one digit, a run of punctuation, or white space
# (line ends together; otherwise its last blank is left for the word that follows).
PIECES = r"['’](?:s|t|re|ve|m|ll|d)\b| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def texts(paths: list[Path]) -> Iterator[str]:
    """Yield every string the tokenizer learns from."""
    for path in paths:
        for row in training_rows(path):
            if "prompt" in row:
                yield row["prompt"]
            yield row["text"]


def train(paths: list[Path], size: int) -> Tokenizer:
    """Learn a byte-level BPE of `size` entries, special tokens included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
    )
    tokenizer.train_from_iterator(texts(paths), trainer)
    return tokenizer


def main() -> None:
    """Parse the command line and write the tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--size", type=int, default=16_384)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    train(arguments.corpora, arguments.size).save(str(arguments.out))


if __name__ == "__main__":
    main()
