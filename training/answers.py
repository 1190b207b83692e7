"""Let a pretrained causal model write the texts that it is then taught diffusion with.

Usage: python training/answers.py packed/ --start model.gguf --tokenizer tokenizer.json --out own/

What a model would have written itself teaches it nothing but the new way of writing, so it keeps
what it knows best. It answers the prompts of the packed chats and goes on from the beginnings of
the packed "teacher" texts, with causal attention. Writes a folder such as `documents.py` writes,
with the other corpora as they are, and sample.jsonl to look at. Held-out prompts come first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from adapt import Reader, load
from dllmark.models.families import DREAM
from dllmark.models.transformer import (
    Attention,
    Block,
    Cache,
    CachedLayer,
    Pair,
    Transformer,
    rotary_angles,
    rotate,
    swiglu,
)
from dllmark.quality.repetition import repeated_ngrams
from dllmark.sampling.recorder import Recorder
from documents import CHAT, SENTENCE_END, finished

SYSTEM = (
    "You are a helpful assistant. Answer in plain prose of about 200 words, "
    "without lists, headings or code."
)
"""What stands before a question when it is answered, and not in what is learned."""

ASKED = " Answer in one long paragraph of plain prose."
"""The same after a question. Little is known of how well it works: of three questions, one draw
each, all got lists where only the system asked, and also with a stricter system's message; one did
with this. With "one or two paragraphs" two of those three were asked again, and both got lists.
"""


class Kind(NamedTuple):
    """Tokens of a text at most, with all before it; its temperature; what closes it."""

    length: int
    temperature: float
    end: str


KINDS = {
    "chats": Kind(384, 0.7, DREAM.ends[1]),
    "teacher": Kind(320, 0.8, DREAM.ends[0]),
}

LIKELY = 0.05
"""A token less likely than this share of the likeliest is never drawn (min-p)."""

CHATS_FOR_A_TEXT = 5
"""So many chats are written for one plain text."""

BEGINNING = 24
"""Tokens of a plain text that the model goes on from."""

SHORTEST = 20
"""Tokens of an answer at least."""

MOST = 0.12
"""The share of repeated 4-grams in a text at most, as in `documents.py`."""

HELD_OUT = 1000
"""Texts at most that are held out."""

SEEN = (128, 256, 384)
"""How much of the cache a step reads: the first of these that holds its position."""

LAST_NUMBER = re.compile(r"\s+\d+\.$")
"""The number of an entry of a list that was cut off before it began: no sentence ends there."""

SAMPLE = 40
"""Texts in sample.jsonl."""


class Prompt(NamedTuple):
    """The first ids of a text, of a corpus or its held-out part."""

    corpus: str
    split: str
    ids: list[int]


class Text(NamedTuple):
    """A text as it is learned: its ids, and how many of them are a prompt."""

    ids: list[int]
    prompt: int


class Writer:
    """A causal model that writes many texts at once, the same position of all in one step.

    A step reads the token at a position and draws the next one, unless the prompt gives it. So
    nothing is padded, and a position sees all those up to its own. On a GPU a step is one graph.
    """

    def __init__(self, model: Transformer, batch: int, tokenizer: Tokenizer, seed: int = 0) -> None:
        self.model, self.config = model, model.config
        weight = model.embedding.weight
        device = weight.device
        self.tokens = torch.zeros(batch, SEEN[-1], dtype=torch.int64, device=device)
        self.cache = Cache(model.config, self.tokens, weight.dtype)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.given, self.limits = (torch.ones_like(self.tokens[:, 0]) for _ in range(2))
        self.temperatures = torch.ones(batch, 1, device=device)
        self.done = torch.zeros(batch, dtype=torch.bool, device=device)
        self.ends = [tokenizer.token_to_id(name) for name in DREAM.ends]
        self.forbidden = forbidden(tokenizer, model.config.vocab_size).to(device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.recorder = Recorder(self.generator)

    @torch.no_grad()
    def write(self, begun: list[tuple[list[int], Kind]]) -> list[list[int]]:
        """Return what follows each of these ids, to the end that was drawn or to the limit."""
        tokens = torch.full(self.tokens.shape, self.ends[0])
        numbers = torch.ones(len(tokens), 3)  # rows that are left over end at once
        for row, (ids, kind) in enumerate(begun):
            tokens[row, : len(ids)] = torch.tensor(ids)
            numbers[row] = torch.tensor([len(ids), kind.length, kind.temperature])
        self.tokens.copy_(tokens)
        self.given.copy_(numbers[:, 0])
        self.limits.copy_(numbers[:, 1])
        self.temperatures.copy_(numbers[:, 2:])
        self.done.zero_()
        self.at.zero_()
        for at in range(SEEN[-1] - 1):
            seen = next(size for size in SEEN if at < size)
            self.recorder.run(seen, partial(self.step, seen))
            if at % 16 == 15 and self.done.all():
                break
        rows = zip(self.tokens.tolist(), begun, strict=False)
        return [self.up_to_end(row[len(ids) : kind.length]) for row, (ids, kind) in rows]

    def up_to_end(self, ids: list[int]) -> list[int]:
        """Return the ids up to the first end, with it."""
        return ids[: next((at + 1 for at, id_ in enumerate(ids) if id_ in self.ends), None)]

    def step(self, seen: int) -> None:
        """Compute one position of all texts, and put the next token there."""
        model, rotation = self.model, rotary_angles(self.config, self.at)
        later = torch.arange(seen, device=self.at.device) > self.at
        mask = torch.zeros(1, 1, 1, seen, dtype=self.cache.keys[0].dtype, device=self.at.device)
        mask.masked_fill_(later, -math.inf)
        x, added = model.embedding(self.tokens.index_select(1, self.at)), None
        # flash attention takes no mask, and cuDNN is not trusted here (`adapt.flash`)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            for layer, block in enumerate(model.blocks):
                x, added = self.through(block, CachedLayer(self.cache, layer, self.at),
                                        x, added, rotation, mask)  # fmt: skip
        _, normed = model.norm(x, added)
        drawn = self.draw(model.head(normed)[:, 0])
        after = self.at + 1
        # what the prompt says, or the end that it is filled up with
        told = self.tokens.index_select(1, after)[:, 0]
        new = torch.where((after < self.given) | self.done, told, drawn)
        self.tokens.index_copy_(1, after, new[:, None])
        ended = (after >= self.given) & ((new == self.ends[0]) | (new == self.ends[1]))
        self.done |= ended | (after + 1 >= self.limits)
        self.at += 1

    def through(
        self, block: Block, cached: CachedLayer, x: Tensor, added: Tensor | None, rotation: Pair,
        mask: Tensor,
    ) -> Pair:  # fmt: skip
        """Do what the block does, with causal attention."""
        x, normed = block.attention_norm(x, added)
        x, normed = block.mlp_norm(x, self.attend(block.attention, cached, normed, rotation, mask))
        return x, block.down(swiglu(block.gate(normed), block.up(normed)))

    def attend(
        self, attention: Attention, cached: CachedLayer, x: Tensor, rotation: Pair, mask: Tensor
    ) -> Tensor:
        """Let the position [B, 1, D] look at those before it.

        The query heads that share a key head are to attention as many positions of one head: keys
        need not be written out for each.
        """
        batch, width, seen = len(x), self.config.head_width, mask.shape[-1]
        layers = (attention.query, attention.key, attention.value)
        query, key, value = (layer(x).view(batch, 1, -1, width) for layer in layers)
        query, key = rotate(query, key, rotation)
        keys, values = cached.updated(key.transpose(1, 2), value.transpose(1, 2))
        grouped = query.reshape(batch, self.config.kv_heads, -1, width)
        mixed = scaled_dot_product_attention(
            grouped, keys[:, :, :seen], values[:, :, :seen], attn_mask=mask
        )
        result: Tensor = attention.out(mixed.reshape(batch, 1, -1))
        return result

    def draw(self, logits: Tensor) -> Tensor:
        """Return a likely token [B] for each row of logits [B, V], by Gumbel noise."""
        scaled = (logits / self.temperatures).masked_fill_(self.forbidden, -math.inf)
        unlikely = scaled < scaled.amax(-1, keepdim=True) + math.log(LIKELY)
        noise = torch.empty_like(scaled).exponential_(generator=self.generator).log_()
        return scaled.sub_(noise).masked_fill_(unlikely, -math.inf).argmax(-1)


def forbidden(tokenizer: Tokenizer, size: int) -> Tensor:
    """Return [V]: the special tokens but the two ends, and ids that are no token."""
    names = set(tokenizer.get_vocab(with_added_tokens=True).values())
    special = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items()
               if token.content not in DREAM.ends}  # fmt: skip
    return torch.tensor([id_ in special or id_ not in names for id_ in range(size)])


class Instructions:
    """What the model is told beside a question."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        message = CHAT.chat_message.replace("{role}", "system").replace("{content}", SYSTEM)
        close = CHAT.chat_message.partition("{content}")[2] + CHAT.chat_reply
        texts = (message, ASKED, close)
        self.system, self.asked, self.close = (tokenizer.encode(text).ids for text in texts)

    def before(self, prompt: Prompt) -> list[int]:
        """Return all that the model reads before it writes; a plain text comes without a word."""
        if prompt.corpus != "chats":
            return prompt.ids
        question = prompt.ids[: -len(self.close)]
        return [*self.system, *question, *self.asked, *self.close]


def read(folder: Path, corpus: str, split: str) -> list[Prompt]:
    """Return the prompts of a packed corpus in a random order, those that leave room for a text."""
    name = folder / f"{corpus}{split}"
    if not Path(f"{name}.rows.npy").exists():
        return []
    tokens, rows = np.load(f"{name}.tokens.npy", mmap_mode="r"), np.load(f"{name}.rows.npy")
    sizes = rows[:, 2] if corpus == "chats" else np.where(rows[:, 1] > BEGINNING, BEGINNING, 0)
    usable = np.flatnonzero((sizes > 0) & (sizes <= KINDS[corpus].length // 3))
    order = np.random.default_rng(0).permutation(usable)
    return [
        Prompt(corpus, split, tokens[start : start + size].tolist())
        for start, size in zip(rows[order, 0], sizes[order], strict=True)
    ]


def prompts(folder: Path, split: str) -> list[Prompt]:
    """Return the prompts of all kinds, mixed evenly as far as they reach."""
    every = {"chats": 1, "teacher": CHATS_FOR_A_TEXT}
    placed = [
        (at * every[corpus], prompt)
        for corpus in KINDS
        for at, prompt in enumerate(read(folder, corpus, split))
    ]
    return [prompt for _, prompt in sorted(placed, key=lambda one: one[0])]


def closed(prompt: Prompt, said: list[int], tokenizer: Tokenizer) -> Text | None:
    """Return a text as `documents.py` closes it; none where no sentence of it was finished.

    A chat is always closed, a plain text where the model itself ended it.
    """
    ends = {tokenizer.token_to_id(name) for name in DREAM.ends}
    end = tokenizer.token_to_id(KINDS[prompt.corpus].end)
    chat = prompt.corpus == "chats"
    before, after = (prompt.ids, said) if chat else ([], prompt.ids + said)
    if said and said[-1] in ends:
        return Text([*before, *after[:-1], end], len(before))
    text = tokenizer.decode(after)
    if not SENTENCE_END.search(text):
        return None
    whole = tokenizer.encode(finished(LAST_NUMBER.sub("", finished(text)))).ids
    return Text([*before, *whole, *([end] if chat else [])], len(before))


def worth_keeping(prompt: Prompt, text: Text) -> bool:
    """Return whether an answer is long enough, and a text to train on repeats itself little."""
    said = text.ids[text.prompt :]
    if prompt.corpus == "chats" and len(said) - 1 < SHORTEST:
        return False
    return bool(prompt.split) or repeated_ngrams(said, 4) <= MOST


def save(texts: list[Text], folder: Path, name: str, dtype: np.dtype) -> None:
    """Write texts as `documents.py` does."""
    sizes = np.array([len(text.ids) for text in texts], np.int64)
    starts = np.cumsum(sizes) - sizes
    put(folder / f"{name}.tokens.npy", np.concatenate([text.ids for text in texts]).astype(dtype))
    put(folder / f"{name}.rows.npy", np.stack([starts, sizes, [t.prompt for t in texts]], 1))
    print(f"{name}: {sizes.sum():,} tokens in {len(texts):,} rows", flush=True)


def put(path: Path, array: NDArray) -> None:
    """Write an array; a run that is cut short leaves the one before."""
    with path.with_suffix(".new").open("wb") as file:
        np.save(file, array)
    path.with_suffix(".new").replace(path)


def batches(packed: Path, size: int) -> Iterator[list[Prompt]]:
    """Yield the prompts in batches, those held out first."""
    for given in (prompts(packed, ".held_out")[:HELD_OUT], prompts(packed, "")):
        rest = iter(given)
        while batch := list(itertools.islice(rest, size)):
            yield batch


def answer(
    writer: Writer, given: Iterable[list[Prompt]], tokenizer: Tokenizer, seconds: float
) -> dict[str, list[Text]]:
    """Return the texts of each corpus that are worth keeping, written in so many seconds."""
    start, tokens, rows = time.monotonic(), 0, 0
    instructions = Instructions(tokenizer)
    kept: dict[str, list[Text]] = defaultdict(list)
    for batch in given:
        begun = [(instructions.before(one), KINDS[one.corpus]) for one in batch]
        said = writer.write(begun)
        for prompt, ids in zip(batch, said, strict=True):
            text = closed(prompt, ids, tokenizer)
            if text is not None and worth_keeping(prompt, text):
                kept[f"{prompt.corpus}{prompt.split}"].append(text)
        rows, tokens = rows + len(batch), tokens + sum(map(len, said))
        spent, good = time.monotonic() - start, sum(map(len, kept.values()))
        print(
            f"{spent:.0f} s: {good:,} of {rows:,} texts, {tokens / spent:,.0f} tokens/s", flush=True
        )
        if spent >= seconds:
            break
    return kept


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packed", type=Path)
    parser.add_argument("--start", type=Path, required=True, help="GGUF file or folder")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=90, help="no batch starts after them")
    parser.add_argument("--batch", type=int, default=1024)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reader = Reader(arguments.tokenizer, device)
    tokenizer = Tokenizer.from_str(reader.definition)
    model = load(arguments.start, reader, device)
    writer = Writer(model.bfloat16() if device == "cuda" else model, arguments.batch, tokenizer)
    given = batches(arguments.packed, arguments.batch)
    kept = answer(writer, given, tokenizer, arguments.seconds)
    for name, texts in kept.items():
        dtype = np.load(arguments.packed / f"{name}.tokens.npy", mmap_mode="r").dtype
        save(texts, arguments.out, name, dtype)
    for path in sorted(arguments.packed.glob("*.npy")):
        if path.name.split(".")[0] not in KINDS:
            shutil.copy(path, arguments.out)
    some = list(itertools.chain(*(texts[: SAMPLE // len(kept)] for texts in kept.values())))
    with (arguments.out / "sample.jsonl").open("w", encoding="utf-8") as file:
        for ids, _ in some:
            text = tokenizer.decode(ids, skip_special_tokens=False)
            print(json.dumps({"text": text}, ensure_ascii=False), file=file)


if __name__ == "__main__":
    main()
