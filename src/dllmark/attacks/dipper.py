"""Paraphrase by Dipper, a T5 that is told how much to change.

Krishna et al. 2023. Windows of a few sentences are rewritten from left to right; each is given to
the model behind what was written before it:

    lexical = 80, order = 100 The text so far. <sent> Sentences to rewrite. </sent>

The codes are 100 minus the diversity.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from dllmark.errors import InputError, ModelError, require
from dllmark.relation.tokenizer import is_hub_id

MODEL = "kalpeshk2011/dipper-paraphraser-xxl"
TOKENIZER = "google/t5-v1_1-xxl"
"""Dipper's published code takes its tokenizer from here."""

DIVERSITIES = (0, 20, 40, 60, 80, 100)
MOST_TOKENS = 512
TOP_P = 0.75
"""The length of an answer and the sampling of Dipper's published example."""

_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9])")


class Dipper:
    """A paraphraser with the paper's settings: lexical 20, order 0, three sentences at a time.

    >>> Dipper("path/to/dipper").paraphrase("A text.")  # doctest: +SKIP
    """

    def __init__(
        self,
        source: str = MODEL,
        *,
        tokenizer: str | None = None,
        lexical: int = 20,
        order: int = 0,
        interval: int = 3,
    ) -> None:
        for name, diversity in (("lexical", lexical), ("order", order)):
            if diversity not in DIVERSITIES:
                raise InputError(f"{name} diversity is 0, 20, 40, 60, 80 or 100; got {diversity}")
        if interval < 1:
            raise InputError(f"at least 1 sentence is rewritten at a time; got {interval}")
        self.lexical, self.order, self.interval = lexical, order, interval
        self._tokenizer, self._model = _load(source, tokenizer)

    def paraphrase(self, text: str, seed: int = 0) -> str:
        """Return the text rewritten; the same seed gives the same result."""
        import torch

        written = ""
        gpus = [self._model.device] if self._model.device.type == "cuda" else []
        with torch.random.fork_rng(gpus), torch.inference_mode():
            torch.manual_seed(seed)
            for window in windows(text, self.interval):
                before = f" {written}" if written else ""
                prompt = (
                    f"lexical = {100 - self.lexical}, order = {100 - self.order}{before} "
                    f"<sent> {window} </sent>"
                )
                written = f"{written} {self._rewrite(prompt)}".strip()
        return written

    def _rewrite(self, prompt: str) -> str:
        inputs = self._tokenizer([prompt], return_tensors="pt").to(self._model.device)
        [ids] = self._model.generate(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask,
            do_sample=True, top_p=TOP_P, top_k=0, max_length=MOST_TOKENS,
        )  # fmt: skip
        answer: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return answer.strip()


def windows(text: str, interval: int) -> list[str]:
    """Return a text's sentences, some at a time, with single spaces.

    A sentence ends at a full stop, ! or ? before a capital letter or a digit, so "Dr. No" is cut in
    two: here that only moves the border of a window.

    >>> windows("One. Two?  Three! Four.", 3)
    ['One. Two? Three!', 'Four.']
    """
    flat, sentences, start = " ".join(text.split()), [], 0
    for end in _END.finditer(flat):
        sentences.append(flat[start : end.end()].strip())
        start = end.end()
    sentences += [flat[start:]] if flat[start:] else []
    return [" ".join(sentences[at : at + interval]) for at in range(0, len(sentences), interval)]


def check_source(source: str) -> None:
    """Raise `ModelError` where a model or a tokenizer is neither a folder nor the name of one.

    Asking the hub for a path takes a minute, since it is asked again and again.
    """
    if not os.path.isdir(source) and not is_hub_id(source):
        raise ModelError(
            f"there is no folder {source}: give a folder, or a model on the Hugging Face hub as "
            "owner/name"
        )


def _load(source: str, tokenizer: str | None) -> tuple[Any, Any]:
    """Return a tokenizer and a T5, on the GPU where there is one; no code of theirs is run."""
    check_source(source)
    check_source(tokenizer or TOKENIZER)
    require("Dipper", "torch,eval", "torch", "transformers")
    import torch
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    has_own = any((Path(source) / name).exists() for name in ("tokenizer.json", "spiece.model"))
    try:
        words = AutoTokenizer.from_pretrained(tokenizer or (source if has_own else TOKENIZER))
        model: Any = T5ForConditionalGeneration.from_pretrained(source, dtype="auto")
    except Exception as error:  # not there, no T5, damaged, offline: many classes
        raise ModelError(
            f"cannot load Dipper from {source} ({type(error).__name__}): give a folder or a model "
            "on the hub with T5's weights, and with --tokenizer T5's tokenizer"
        ) from None
    return words, model.to("cuda" if torch.cuda.is_available() else "cpu")
