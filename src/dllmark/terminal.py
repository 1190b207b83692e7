"""What the commands print: lines for scripts, colours for people, and how far long work is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from io import TextIOWrapper
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID, TextColumn
from rich.text import Text

from dllmark.errors import OutputError

if TYPE_CHECKING:
    from dllmark.detection.detector import Detection
    from dllmark.sampling.texts import Step

ERROR = 2
"""The exit status of an error; others are verdicts."""

COLOURS = {"green": "black on green", "red": "black on red", "not scored": "dim"}
SIGNS = {"green": "+", "red": "-", "not scored": ""}
STYLE = {"watermarked": "bold green", "not detected": "bold", "too short": "yellow"}

SILENCE = 10.0
"""Seconds after which work that no terminal shows says again how far it is."""

_SHOWN = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))},
    **{ord("\t"): "\t", ord("\n"): "\n", ord("\r"): ""},
}
"""What stands for each control character: a tab and a line end for themselves, others harmless."""


out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


class _CheckedOutput:
    """Standard output, whose failures are ours: rich and typer would exit 1, which is a verdict.

    Where the reader has gone, the exit status 2 is all that is left to say; anything else is an
    `OutputError`. What is still buffered then is dropped, else Python would try again at its end.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._checked():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with suppress(OSError):  # a stream that is no file has no buffer to drop
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(ERROR) from None
            reason = error.strerror or error
            raise OutputError(f"cannot write to standard output: {reason}") from None


@contextmanager
def checked_output() -> Iterator[None]:
    """Have everything that is printed checked, to the last buffer; show what cannot be encoded."""
    if sys.stdout is None:
        raise OutputError("standard output is closed: to drop it, redirect it to /dev/null")
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    checked = _CheckedOutput(sys.stdout)
    with redirect_stdout(cast(TextIO, checked)):
        try:
            yield
        finally:
            with out.capture():  # drops what rich has kept because it could not write it
                pass
            checked.flush()


def print_error(error: Exception | str) -> None:
    """Print one line on standard error, if that can be written."""
    line = printable(" ".join(str(error).splitlines()))
    with suppress(OSError):
        err.print(Text.assemble(("error: ", "bold red"), line))


def print_json(record: dict[str, Any]) -> None:
    """Print one line of JSON, never wrapped or coloured."""
    print_line(json.dumps(record))


def print_line(line: str) -> None:
    """Print a line as it is; rich would turn its tabs into spaces."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Print a text as it is, for a detector or a file; to a terminal it can give no commands."""
    print_line(printable(text) if sys.stdout.isatty() else text)


def print_verdict(
    detection: Detection, title: str = "", label: str | None = None, to: Console | None = None
) -> None:
    """Print the verdict in colour with its evidence, to standard output unless told otherwise."""
    style, figures = STYLE[detection.verdict.value], evidence(detection, label)
    (to or out).print(Text.assemble(title, (detection.conclusion, style), f"  {figures}"))


def print_details(text: str, details: dict[str, Any], *, with_legend: bool = True) -> None:
    """Print the coloured tokens, what the colours mean, and the marked stretches."""
    if "tokens" in details:
        plain = out.color_system is None
        view = coloured(text, details["tokens"], plain=plain)
        out.print(view, soft_wrap=not out.is_terminal)  # a terminal would break words at its edge
        if with_legend:
            out.print(legend(plain=plain), soft_wrap=not out.is_terminal)
    for span in details.get("spans", ()):
        excerpt = printable(" ".join(text[span["start"] : span["end"]].split()))
        excerpt = excerpt if len(excerpt) <= 60 else f"{excerpt[:40]} ... {excerpt[-15:]}"
        out.print(f"{span['start']}-{span['end']}  p {p_value(span['p_value'])}  {excerpt}")


def coloured(text: str, tokens: list[dict[str, Any]], *, plain: bool) -> Text:
    """Return the text with its tokens in colour, or with + and - behind them where none shows.

    A character that several tokens share appears once.
    """
    result, shown = Text(), 0
    for token in tokens:
        piece, shown = printable(text[shown : token["end"]]), token["end"]
        result.append(piece + SIGNS[token["mark"]] if plain else piece, COLOURS[token["mark"]])
    return result


def legend(*, plain: bool) -> Text:
    """Return what the colours of tokens mean, or the signs where no colour shows."""
    green, red = ("+", "-") if plain else (" green ", " red ")
    return Text.assemble(
        (green, "" if plain else COLOURS["green"]),
        " the key favours this token after the one before it; ",
        (red, "" if plain else COLOURS["red"]),
        " it does not. Other tokens do not count: the first one, and pairs that repeat.",
    )


def printable(text: str) -> str:
    """Return a text that cannot command the terminal it is shown on."""
    return text.translate(_SHOWN)


def evidence(detection: Detection, label: str | None = None) -> str:
    """Return the figures behind a verdict, and the label of the key if it has one."""
    tried = f" (best of {detection.keys_tried})" if detection.keys_tried > 1 else ""
    tried += f"  {label}" if label else ""
    return (
        f"z {detection.z:.2f}  p {p_value(detection.p_value)}  "
        f"{detection.green} of {detection.pairs} pairs green  key {detection.key_id}{tried}"
    )


def p_value(value: float) -> str:
    """Return a p-value in three digits, and a bound where it is too small for a number."""
    return f"{value:.3g}" if value > 0 else "< 1e-300"


def working(what: str) -> AbstractContextManager[object]:
    """Say what is done, on a terminal, for as long as it is done."""
    return err.status(what) if err.is_terminal else nullcontext()


class _Bar(Progress):
    """A progress bar that prints a line now and then where there is no terminal to draw it on."""

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._next = monotonic() + SILENCE

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._tell(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        if not self.disable or monotonic() < self._next:
            return
        self._next = monotonic() + SILENCE
        task = self._tasks[task_id]
        done = f"{task.percentage:.0f} %" if task.total else f"{task.completed:,.0f}"
        err.print(f"{task.description}: {done}")


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Return a progress bar on standard error that leaves nothing behind.

    Where that is no terminal, long work says every few seconds how far it is. What is printed
    meanwhile goes where it would have gone.
    """
    return _Bar(
        *columns,
        console=err,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not err.is_terminal,
    )


@contextmanager
def step_bar(title: str) -> Iterator[Callable[[Step], None]]:
    """Show how many steps of a batch are done."""
    with progress_bar() as bar:
        task = bar.add_task(title, total=None)
        yield lambda step: bar.update(task, completed=step.number, total=step.total)


@contextmanager
def counting(title: str, *, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Show how many there are so far; call what is yielded once for each.

    Where lines are printed to the same terminal meanwhile, they are progress enough.
    """
    if not shown:
        yield lambda: None
        return
    with progress_bar(TextColumn("{task.description}: {task.completed:,.0f}")) as bar:
        task = bar.add_task(title, total=None)
        yield lambda: bar.advance(task)
