"""Write docs/cli.md from the command line's own help texts.

python docs/make_cli.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dllmark.commands.cli import command_line

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 100

INTRODUCTION = """\
# The command line

What `--help` says of every command. This page is generated: change the help texts where the
commands are (`src/dllmark/commands/`), then run `make docs`.
"""


def page() -> str:
    """Return the page: a section a command, in the order in which `dllmark --help` lists them."""
    sections = [f"## {name}\n\n```text\n{text}\n```\n" for name, text in _helps()]
    return "\n".join([INTRODUCTION, *sections])


def _helps() -> Iterator[tuple[str, str]]:
    """Yield the name and the help of `dllmark` and of every visible command below it."""
    waiting: list[tuple[Any, Any, str]] = [(command_line(), None, "dllmark")]
    while waiting:
        command, parent, name = waiting.pop(0)
        # A width given here overrides the terminal's; without markup the text has no boxes.
        command.rich_markup_mode = None
        context = command.context_class(
            command, parent, info_name=name, terminal_width=WIDTH, **command.context_settings
        )
        yield context.command_path, _plain(command.get_help(context))
        below = getattr(command, "commands", {})
        waiting[:0] = [(sub, context, key) for key, sub in below.items() if not sub.hidden]


def _plain(text: str) -> str:
    """Drop blanks at the ends of lines, which editors remove, and around the text."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
