"""How plausible the teacher finds each token of a text, token by token of another tokenizer."""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dllmark.quality.perplexity import Judge
from dllmark.relation.tokenizer import Tokenizer

ROWS = 32
"""Texts judged together."""


class Teacher:
    """A causal model that reads what another model wrote, in that model's tokens.

    Both tokenizers must be byte-level: a token then stands for as many bytes as its name has signs.
    """

    def __init__(self, judge: Judge, tokenizer: Tokenizer, first: int) -> None:
        self.judge, self.tokenizer, self.first = judge, tokenizer, first
        names = judge.tokenizer.convert_ids_to_tokens(list(range(len(judge.tokenizer))))
        self.theirs = np.array([len(name) for name in names])
        self.ours = np.zeros(tokenizer.vocab_size, np.int64)
        for name, number in json.loads(tokenizer.definition())["model"]["vocab"].items():
            self.ours[number] = len(name) if number >= first else 0

    @torch.no_grad()
    def surprise(self, tokens: Tensor) -> Tensor:
        """Return [B, L]: how unlikely, in nats, the teacher finds each token of texts [B, L].

        A token of the teacher counts where it begins. What is not valid UTF-8 gets no surprise.
        """
        return torch.cat([self._surprise(part) for part in tokens.split(ROWS)])

    def _surprise(self, tokens: Tensor) -> Tensor:
        rows = tokens.cpu().numpy()
        texts = [self.tokenizer.decode(row[row >= self.first].tolist()) for row in rows]
        ids = self.judge.tokenizer(texts, add_special_tokens=False).input_ids
        padded = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
        for row, one in enumerate(ids):
            padded[row, : len(one)] = torch.tensor(one)
        padded = padded.to(tokens.device)
        logits = self.judge.model(input_ids=padded, use_cache=False).logits[:, :-1]
        losses = cross_entropy(logits.transpose(1, 2).float(), padded[:, 1:], reduction="none")
        found, losses = np.zeros(rows.shape, np.float32), losses.cpu().numpy()
        for row, one in enumerate(ids):
            ends = np.cumsum(self.ours[rows[row]])
            starts = np.cumsum([0, *self.theirs[one]])
            if starts[-1] == ends[-1]:
                at = np.searchsorted(ends, starts[1:-1], side="right")
                np.add.at(found[row], at, losses[row, : len(one) - 1])
        return torch.from_numpy(found).to(tokens.device)
