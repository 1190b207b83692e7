"""Texts shown while they are denoised: masks that become words, in the key's colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.live import Live
from rich.text import Text

from dllmark import terminal

if TYPE_CHECKING:
    from dllmark.detection.detector import Detector
    from dllmark.relation.tokenizer import Tokenizer
    from dllmark.sampling.texts import Step

MASK = "░"


@contextmanager
def watched(
    tokenizer: Tokenizer, titles: Sequence[str], detector: Detector | None = None
) -> Iterator[Callable[[Step], None]]:
    """Show the first texts of a batch, one a title, while they are denoised.

    Nothing of it stays on the screen. It stands on standard error, and standard output is not
    redirected through it as rich would: that may be a pipe. Without a terminal, it says how far
    the work is.
    """
    if not terminal.err.is_terminal:
        texts = titles[0] if len(titles) == 1 else f"{len(titles)} texts"
        with terminal.step_bar(f"writing {texts}") as show:
            yield show
        return
    with Live(
        console=terminal.err,
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        views = [
            TextView(tokenizer, row, title, detector, terminal.err.width)
            for row, title in enumerate(titles)
        ]
        try:
            yield lambda step: live.update(Group(*(view(step) for view in views)), refresh=True)
        finally:
            live.update("")  # else a text taller than the screen would be printed whole


class TextView:
    """Draws one text of a batch as it stands after a step.

    Tokens appear where and when the model commits them; those of the last step stand out. With a
    detector they have the key's colours, and the green pairs are counted.
    """

    def __init__(
        self, tokenizer: Tokenizer, row: int, title: str, detector: Detector | None, width: int
    ) -> None:
        self._tokenizer, self._row, self._title = tokenizer, row, title
        self._detector, self._width = detector, width
        self._words: dict[int, str] = {}
        self._before: set[int] = set()

    def __call__(self, step: Step) -> Text:
        """Return the text after a step, under a line that says how far it is."""
        tokens = step.tokens[self._row, step.start :].tolist()
        known = step.revealed[self._row, step.start :].tolist()
        marks, count = self._marks(tokens)
        total = "" if step.total is None else f" of {step.total}"
        view = Text(no_wrap=False, overflow="fold")  # else the console would show one line of it
        view.append(f"{self._title}: step {step.number}{total}{count}\n", "dim")
        pieces = []
        for at, token in enumerate(tokens):
            new = "" if at in self._before else "bold underline"
            style = terminal.COLOURS[marks[at]] if marks[at] != "not scored" else ""
            pieces.append((self._word(token), f"{new} {style}".strip()) if known[at] else None)
        self._before = {at for at, there in enumerate(known) if there}
        for text, style in in_lines(pieces, self._width):
            view.append(text, style)
        return view

    def _marks(self, tokens: list[int]) -> tuple[list[str], str]:
        """Return the colour of each token, and how many pairs are green, in words."""
        marks = ["not scored"] * len(tokens)
        if self._detector is None:
            return marks, ""
        scored, green = self._detector.colours(tokens)
        for pair in scored.nonzero()[0].tolist():
            marks[pair + 1] = "green" if green[pair] else "red"
        return marks, f", {marks.count('green')} of {int(scored.sum())} pairs green"

    def _word(self, token: int) -> str:
        if token not in self._words:
            self._words[token] = terminal.printable(self._tokenizer.decode([token]))
        return self._words[token]


def in_lines(pieces: Iterable[tuple[str, str] | None], width: int) -> Iterator[tuple[str, str]]:
    """Yield texts and styles with line ends between words; None is a mask.

    A word may have several pieces. Around a mask a line may end too, else a word beside a long row
    of masks would be cut.

    >>> print("".join(text for text, _ in in_lines([("one", ""), (" two", ""), ("fold", "")], 8)))
    one
    twofold
    """
    column = 0
    space: list[tuple[str, str]] = []
    word: list[tuple[str, str]] = []

    def placed() -> Iterator[tuple[str, str]]:
        nonlocal column, space, word
        long = sum(cell_len(text) for text, _ in word)
        gap = sum(cell_len(text) for text, _ in space)
        if column + gap + long > width:
            if column:
                yield "\n", ""
            column, gap, space = 0, 0, []
        yield from space
        yield from word
        column = (column + gap + long - 1) % width + 1 if column + gap + long else 0
        space, word = [], []

    for piece in pieces:
        for part in [MASK] if piece is None else re.findall(r"\n|[^\S\n]+|\S+", piece[0]):
            style = "dim" if piece is None else piece[1]
            if word and (piece is None or part.isspace()):
                yield from placed()
            if part == "\n":
                yield "\n", style
                column, space = 0, []
            elif part.isspace():
                space.append((part, style))
            else:
                word.append((part, style))
            if piece is None:
                yield from placed()
    if word:
        yield from placed()
