"""A terminal in memory, and steps of a text to show on it."""

import io
import re

import torch
from rich.console import Console

from dllmark.sampling.texts import Step

MASK_ID = 2


def canvas(*words, prompt=1, number=1, total=None, rows=1):
    """A step after which some words stand behind a prompt: 5 is w2, 6 is w3; None is a mask."""
    tokens = [3] * prompt + [MASK_ID if word is None else word for word in words]
    revealed = [True] * prompt + [word is not None for word in words]
    tokens, revealed = torch.tensor([tokens] * rows), torch.tensor([revealed] * rows)
    return Step(number, total, tokens, revealed, prompt)


def terminal(width=20, height=6):
    """A terminal of some columns and lines, whose file keeps what is sent to it."""
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", width=width,
        height=height, soft_wrap=True, highlight=False, markup=False, emoji=False,
    )  # fmt: skip


def frames(screen):
    """What stood on the screen after each redraw, and in the end; its lines are joined."""
    shown, lines, row = [], [""], 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", screen.getvalue()):
        if piece == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif piece == "\r":
            shown.append("".join(lines))
        elif piece.startswith("\x1b"):
            row -= int(piece[2:-1]) if piece.endswith("A") else 0
            lines[row] = "" if piece.endswith("2K") else lines[row]
        else:
            lines[row] += piece
    return [*shown, "".join(lines)]
