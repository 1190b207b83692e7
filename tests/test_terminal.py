"""What is shown: nothing that commands a terminal, colours, and how far long work is."""

import re
import sys

import pytest
from rich.text import Text
from screens import canvas, frames, terminal

import dllmark.terminal
from dllmark.terminal import (
    coloured,
    legend,
    print_details,
    print_error,
    print_text,
    printable,
    progress_bar,
    step_bar,
)


@pytest.fixture
def screen(monkeypatch):
    """Standard error as a terminal of 20 columns and 6 lines."""
    console = terminal()
    monkeypatch.setattr(dllmark.terminal, "err", console)
    return console.file


@pytest.mark.parametrize("total", [2, None], ids=["known", "open"])
def test_a_bar_counts_the_steps_and_is_removed(screen, total):
    with step_bar("texts") as count:
        for number in (1, 2):
            count(canvas(5, number=number, total=total))
    assert "texts" in screen.getvalue()
    assert ("100%" in screen.getvalue()) == (total == 2)
    assert frames(screen)[-1] == ""


def test_where_there_is_no_terminal_quick_work_says_nothing(capsys):
    with step_bar("texts") as show:
        show(canvas(5, None, total=2))
        print("text")
    assert capsys.readouterr() == ("text\n", "")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [0.0]
    monkeypatch.setattr(dllmark.terminal, "SILENCE", 10.0)
    monkeypatch.setattr(dllmark.terminal, "monotonic", lambda: now[0])
    return now


def test_where_there_is_no_terminal_long_work_says_now_and_then_how_far_it_is(capsys, clock):
    with step_bar("texts 1 to 8 of 20") as show:
        for number, clock[0] in enumerate((1, 9, 11, 12, 19, 22), 1):
            show(canvas(5, None, number=number, total=8))
    assert capsys.readouterr().err == "texts 1 to 8 of 20: 38 %\ntexts 1 to 8 of 20: 75 %\n"


def test_work_of_unknown_length_says_how_much_is_done(capsys, clock):
    with progress_bar() as bar:
        task = bar.add_task("scoring", total=None)
        clock[0] = 60
        bar.advance(task, 1234)
    assert capsys.readouterr().err == "scoring: 1,234\n"


def test_standard_output_does_not_pass_through_the_terminal(screen, capsys):
    with step_bar("texts") as show:
        show(canvas(5, None, total=2))
        print("to the pipe")
    assert capsys.readouterr().out == "to the pipe\n"
    assert "to the pipe" not in screen.getvalue()


HOSTILE = {
    "colour": ("\x1b[31mred", "\\x1b[31mred"),
    "title": ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
    "C1": ("\x9b31m \x90 \x9d", "\\x9b31m \\x90 \\x9d"),
    "backspaces": ("no\x08\x08yes\x7f", "no\\x08\\x08yes\\x7f"),
    "overwriting": ("bad\rgood", "badgood"),
    "line ends and tabs": ("a\r\nb\tc\n", "a\nb\tc\n"),
    "other scripts": ("naïve 你好 🤷🏽", "naïve 你好 🤷🏽"),
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_a_text_cannot_command_a_terminal_but_reaches_a_pipe_as_it_is(
    capsys, monkeypatch, text, shown
):
    assert printable(text) == shown
    print_text(text)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_text(text)
    assert capsys.readouterr().out == shown + "\n"


def test_an_error_is_one_line_that_commands_nothing(capsys):
    print_error("there is no \x1b[2J\nfile")
    assert capsys.readouterr().err == "error: there is no \\x1b[2J file\n"


@pytest.mark.parametrize("plain", [False, True])
def test_coloured_tokens_share_characters_and_hide_commands(plain):
    tokens = [
        {"end": 2, "mark": "not scored"}, {"end": 4, "mark": "green"}, {"end": 4, "mark": "red"},
    ]  # fmt: skip
    view = coloured("a\x1bcd", tokens, plain=plain)
    assert isinstance(view, Text)
    assert view.plain == ("a\\x1bcd+-" if plain else "a\\x1bcd")


@pytest.mark.parametrize("plain", [False, True], ids=["colours", "signs"])
def test_the_legend_says_what_colours_and_signs_mean(plain):
    shown = legend(plain=plain)
    assert shown.plain.split()[0] == ("+" if plain else "green")
    assert "the key favours this token" in shown.plain
    assert bool(shown.spans) == (not plain)


def test_coloured_words_do_not_break_at_the_edge_of_a_terminal(monkeypatch):
    console = terminal()
    monkeypatch.setattr(dllmark.terminal, "out", console)
    text = "lighthouse keepers watch"
    print_details(text, {"tokens": [{"end": len(text), "mark": "green"}]}, with_legend=False)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()
    assert [line.strip() for line in lines] == ["lighthouse keepers", "watch"]
