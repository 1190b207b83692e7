"""The command line: one command a verb, each in a file of its own.

Exit status: 0 success (for `detect`: watermarked), 1 not detected, 2 error, 3 too short to tell.
Heavy imports stand inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dllmark.commands.attack import app as attack
from dllmark.commands.calibrate import calibrate
from dllmark.commands.demo import demo
from dllmark.commands.detect import detect
from dllmark.commands.generate import generate
from dllmark.commands.keygen import keygen
from dllmark.commands.keys import app as keys
from dllmark.commands.report import report
from dllmark.commands.reproduce import reproduce
from dllmark.commands.scan import scan
from dllmark.commands.serve import serve
from dllmark.errors import DllmarkError
from dllmark.terminal import ERROR, checked_output, out, print_error

INTERRUPTED = 130
LONGEST_MESSAGE = 500


class Commands(TyperGroup):
    """All commands. Two kinds of errors are told here: typer would exit 1, which is a verdict."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except (OSError, EOFError) as error:
            raise typer.Exit(_told(error)) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Watermark text written by diffusion language models, and recognise it later.",
)


def main() -> None:
    """Run the command line; any error is one line on standard error and exit status 2."""
    try:
        with checked_output():
            command_line()()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        sys.exit(_told(error))


def command_line() -> TyperGroup:
    """Return all commands, with the types of values in their help but none for flags.

    Typer would say `<bool>` of a flag, as if it took a value, and `<list[Path]>` of a path that
    may be given several times.
    """
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    waiting: list[tuple[Any, Any]] = [(group, None)]
    while waiting:
        command, parent = waiting.pop()
        context = command.context_class(command, parent, **command.context_settings)
        for option in command.get_params(context):
            if getattr(option, "is_flag", False):
                option.metavar = ""
            elif getattr(option, "multiple", False) and hasattr(option, "display_type"):
                named = re.sub(r"list\[(\w+)\]", r"\1", option.display_type(context))
                option.metavar = named.lower()
        waiting += [(below, context) for below in getattr(command, "commands", {}).values()]
    return group


def _told(error: Exception) -> int:
    """Print an error in one line, and return the exit status.

    One that nobody foresaw may come from anywhere; DLLMARK_TRACEBACK has it shown where.
    """
    if isinstance(error, DllmarkError):
        print_error(error)
    elif isinstance(error, ModuleNotFoundError) and error.name in ("torch", "safetensors"):
        print_error("generating needs torch: pip install 'dllmark[torch]'")
    else:
        if os.environ.get("DLLMARK_TRACEBACK"):
            traceback.print_exception(error)
        message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE].removesuffix(": ")
        print_error(f"unexpected {message} (DLLMARK_TRACEBACK=1 shows where)")
    return ERROR


def _print_version(wanted: bool) -> None:
    if wanted:
        from dllmark import __version__

        out.print(f"dllmark {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Watermark text written by diffusion language models, and recognise it later."""


app.command()(demo)
app.command()(keygen)
app.add_typer(keys, name="keys")
app.command()(generate)
app.command()(detect)
app.command()(calibrate)
app.command()(report)
app.command()(serve)
app.add_typer(attack, name="attack")
app.command()(reproduce)
app.command()(scan)
