"""`dllmark demo`: one text with the watermark and one without, written before your eyes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from dllmark import terminal
from dllmark.sampling.settings import TOKENS, Llada

PROMPT = "Write a short story about a lighthouse keeper."

NEXT = """\
Now try:
  {0} keygen -o my.key
  {0} generate "Why is the sky blue?" --key my.key --watch
  {0} generate "Why is the sky blue?" --key my.key | {0} detect - --key my.key --explain
A verdict says that a text fits the key. It does not say who wrote the text, or that it is true."""


def demo() -> None:
    """Watch the embedded model write with and without the watermark, and detect both."""
    from dllmark.detection.detector import Detector
    from dllmark.marking.watermark import Watermark
    from dllmark.models.loading import load_model
    from dllmark.relation.key import WatermarkKey
    from dllmark.sampling.texts import generate

    out = terminal.out
    model = load_model("embedded")
    key = WatermarkKey.generate(model.tokenizer.id)
    detector = Detector(key, model.tokenizer)
    sampler = Llada(temperature=0.7, suppress_end=True)
    out.print(f"A diffusion model fills masks in any order. It is asked: {PROMPT}\n")
    for title, watermark in (
        ("With the watermark", Watermark(key, tokenizer=model.tokenizer)),
        ("Without it", None),
    ):
        out.print(f"{title}:", style="bold underline")
        with terminal.watched(model.tokenizer) as view:
            [written] = generate(
                model, [PROMPT], watermark, sampler, tokens=TOKENS, seed=1, on_step=view
            )
        tokens = [asdict(token) for token in detector.explain(written.text)]
        terminal.print_details(written.text, {"tokens": tokens})
        terminal.print_verdict(detector.detect(written.text), "verdict: ")
        out.print()
    marks = "+ and -" if out.color_system is None else "Colours"
    out.print(f"{marks}: green and red pairs under this key; a repeated pair is scored once.")
    out.print("The small embedded model is for trying the watermark; what it says is not true.\n")
    out.print(NEXT.format(_program()))


def _program() -> str:
    """Return what to type for this program: its name where the shell finds it, else its path."""
    program = Path(sys.argv[0])
    if program.name != "dllmark" or not program.is_file():
        return "dllmark"
    named = shutil.which("dllmark")
    if named and Path(named).samefile(program):
        return "dllmark"
    return shlex.quote(os.path.relpath(program))
