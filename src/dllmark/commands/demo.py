"""`dllmark demo`: one text with the watermark and one without, written before your eyes."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path

from dllmark import terminal
from dllmark.commands.watch import watched
from dllmark.sampling.settings import TOKENS, default_llada, default_strategy

PROMPT = "Write a short story about a lighthouse keeper."

NEXT = """\
Now try:
  {program} keygen -o {key}
  {program} generate "Why is the sky blue?" --key {key} --watch
  {program} generate "Why is the sky blue?" --key {key} > text.txt
  {program} detect text.txt --key {key} --explain"""
PAGE = """
  {program} serve --key {key}
and open http://127.0.0.1:8000 in a browser."""


def demo() -> None:
    """Watch the embedded model write with and without the watermark, and detect both."""
    with terminal.working("loading the model"):
        from dllmark.detection.detector import Detector
        from dllmark.marking.watermark import Watermark
        from dllmark.models.loading import load_model
        from dllmark.relation.key import WatermarkKey
        from dllmark.sampling.texts import generate_both

        model = load_model("embedded")
    key = WatermarkKey.generate(model.tokenizer.id)
    detector = Detector(key, model.tokenizer)
    sampler = default_llada(model.name, TOKENS, temperature=0.7, suppress_end=True)
    mark = Watermark(key, default_strategy(sampler).name, tokenizer=model.tokenizer)
    _say(f"A diffusion model fills masks in any order. It is asked twice: {PROMPT}\n")
    titles = ["With the watermark", "Without it"]
    with watched(model.tokenizer, titles, detector) as on_step:
        texts = generate_both(model, PROMPT, mark, sampler, tokens=TOKENS, seed=1, on_step=on_step)
    for title, written in zip(titles, texts, strict=True):
        terminal.out.print(f"{title}:", style="bold underline")
        tokens = [asdict(token) for token in detector.explain(written.text)]
        terminal.print_details(written.text, {"tokens": tokens}, with_legend=written is texts[-1])
        terminal.print_verdict(detector.detect(written.text), "verdict: ")
        terminal.out.print()
    _say("The small embedded model is for trying the watermark; what it says is not true.")
    _say("A verdict says that a text fits the key. It does not say who wrote the text.\n")
    terminal.out.print(_next_commands())


def _say(sentence: str) -> None:
    """Print prose: on a terminal its lines end between words."""
    terminal.out.print(sentence, soft_wrap=not terminal.out.is_terminal)


def _next_commands() -> str:
    """Return commands that work where the user stands, one after the other."""
    key = next(name for name in _key_names() if not Path(name).exists())
    serves = importlib.util.find_spec("fastapi") and importlib.util.find_spec("uvicorn")
    return (NEXT + PAGE if serves else NEXT).format(program=_program(), key=key)


def _key_names() -> Iterator[str]:
    yield "my.key"
    yield from (f"my-{number}.key" for number in count(2))


def _program() -> str:
    """Return what to type for this program: its name where the shell finds it, else its path."""
    program = Path(sys.argv[0])
    if program.name != "dllmark" or not program.is_file():
        return "dllmark"
    named = shutil.which("dllmark")
    if named and Path(named).samefile(program):
        return "dllmark"
    return shlex.quote(os.path.relpath(program))
