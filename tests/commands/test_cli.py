"""The command line as a whole: what it lists, and how it ends when something fails."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoints
import pytest
from typer.core import TyperOption

import dllmark
from dllmark.commands.cli import command_line
from dllmark.relation.key import WatermarkKey

SCRIPT = Path(sys.executable).with_name("dllmark")
HINT = "(DLLMARK_TRACEBACK=1 shows where)\n"


def test_the_version_and_the_commands_are_told(run):
    assert run("--version").out == f"dllmark {dllmark.__version__}\n"
    for command in ("keygen", "detect", "calibrate"):
        assert command in run("--help").out
        assert run(command, "-h").status == 0


UNEXPECTED = {
    "a mistake of ours": (ValueError("no such luck"), "ValueError: no such luck"),
    "several lines": (KeyError("one\ntwo"), "KeyError: 'one\\ntwo'"),
    "memory": (MemoryError(), "MemoryError"),
    "recursion": (RecursionError("too deep"), "RecursionError: too deep"),
    "a file": (OSError(5, "Input/output error"), "OSError: [Errno 5] Input/output error"),
    "a connection": (BrokenPipeError(32, "Broken pipe"), "BrokenPipeError: [Errno 32] Broken pipe"),
    "an early end": (EOFError("cut off"), "EOFError: cut off"),
    "a missing module": (ModuleNotFoundError("No module named 'x'"), "ModuleNotFoundError: No mod"),
}


@pytest.fixture
def failing(run, key_file, monkeypatch):
    """Run a command in which something raises an error."""

    def failing(error):
        def fail(*arguments, **options):
            raise error

        monkeypatch.setattr("dllmark.detection.any_key.load_detector", fail)
        return run("detect", "--key", key_file, stdin="words")

    return failing


@pytest.mark.parametrize(("error", "shown"), UNEXPECTED.values(), ids=UNEXPECTED)
def test_an_error_that_nobody_foresaw_is_no_verdict(failing, error, shown):
    result = failing(error)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"error: unexpected {shown}")
    assert result.err.endswith(HINT)


def test_a_message_of_pages_is_cut_short(failing):
    assert len(failing(ValueError("x" * 100_000)).err) < 1000


def test_where_an_error_came_from_is_shown_if_asked_for(failing, key, monkeypatch):
    monkeypatch.setenv("DLLMARK_TRACEBACK", "1")
    result = failing(ValueError("no such luck"))
    assert result.status == 2
    assert result.err.startswith("Traceback") and "in fail" in result.err
    assert key.secret.reveal().hex() not in result.err


def test_an_interrupted_command_exits_as_usual(failing):
    result = failing(KeyboardInterrupt())
    assert (result.status, result.out, "Traceback" in result.err) == (130, "", False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, key):
    """A key, unmarked texts, and a model small enough to start at once."""
    folder = tmp_path_factory.mktemp("files")
    key.save(folder / "k")
    texts = ["some words of a text", "some words of another one"]
    (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    (folder / "model").mkdir()
    checkpoints.write_checkpoint(folder / "model", checkpoints.llada_config())
    return folder


PRINTING = [
    "--help",
    "--version",
    "detect --help",
    "keygen -o new.key",
    "detect texts.jsonl --key k",
    "detect texts.jsonl --key k --json",
    "calibrate texts.jsonl --key k",
    "generate A --no-watermark --model model --tokens 8 --steps 2 --block 8",
    "scan texts.jsonl --key k -o scanned --workers 1",
    "attack case texts.jsonl -o attacked.jsonl --json",
    "demo",
]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is full")
@pytest.mark.parametrize("command", PRINTING)
def test_output_that_cannot_be_written_is_one_line_and_no_verdict(folder, command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [SCRIPT, *command.split()], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True
        )
    reason = "cannot write to standard output: No space left on device"
    written = "; the key is written: new.key" if command.startswith("keygen") else ""
    assert (done.returncode, done.stderr) == (2, f"error: {reason}{written}\n")
    if written:
        assert WatermarkKey.load(folder / "new.key").id


def test_a_closed_output_is_one_line_and_no_verdict(folder):
    done = subprocess.run(
        ["sh", "-c", f"{SCRIPT} --version >&-"], stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in done.stderr


def commands(command, *path):
    """Every command with the words that call it."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *path, name)


def test_help_names_no_type_for_a_flag_and_no_list_for_what_may_be_repeated(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for path in commands(command_line()):
        shown = run(*path, "--help").out
        assert "--help" in shown and "<bool>" not in shown
        options = shown.partition("Options")[2]
        assert "<list[" not in options, path


def test_commands_run_with_a_typer_that_does_not_tell_the_types_of_values(monkeypatch):
    has = next((each for each in TyperOption.__mro__ if "display_type" in vars(each)), None)
    if has:  # typer 0.29 and later
        monkeypatch.delattr(has, "display_type")
    assert "detect" in command_line().commands


def test_a_shell_completes_commands_options_and_values_once_it_is_told_to(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    script = f"""
        {SCRIPT} --install-completion
        source .bashrc
        COMP_WORDS=(dllmark ge) COMP_CWORD=1
        _dllmark_completion {SCRIPT}; echo "command ${{COMPREPLY[*]}}"
        COMP_WORDS=(dllmark generate --sampler dr) COMP_CWORD=3
        _dllmark_completion {SCRIPT}; echo "value ${{COMPREPLY[*]}}"
    """
    home = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [bash, "--norc", "-c", script], cwd=tmp_path, env=home, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "command generate\nvalue dream\n" in done.stdout
