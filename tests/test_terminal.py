"""What is shown: nothing that commands a terminal, a text as it is denoised, and bars elsewhere."""

import io
import re
import sys

import pytest
import torch
from rich.console import Console
from rich.text import Text

import dllmark.terminal
from dllmark.sampling.texts import Step
from dllmark.terminal import (
    canvas_view,
    coloured,
    print_error,
    print_text,
    printable,
    step_bar,
    watched,
)

MASK_ID = 2


def canvas(*words, prompt=1, number=1, total=None, rows=1):
    """A step after which some words stand behind a prompt: 5 is w2, 6 is w3; None is a mask."""
    tokens = [3] * prompt + [MASK_ID if word is None else word for word in words]
    revealed = [True] * prompt + [word is not None for word in words]
    tokens, revealed = torch.tensor([tokens] * rows), torch.tensor([revealed] * rows)
    return Step(number, total, tokens, revealed, prompt)


class Recorder:
    """Stands for rich's Live and keeps what it is given."""

    def __init__(self):
        self.views = []

    def update(self, view, *, refresh=False):
        assert refresh, "a view would wait for the next one"
        self.views.append(view)


def parts(view, style):
    """The pieces of a text that have a style."""
    return [view.plain[span.start : span.end] for span in view.spans if span.style == style]


@pytest.fixture
def screen(monkeypatch):
    """Standard error as a terminal of 20 columns and 6 lines."""
    console = Console(
        file=io.StringIO(), force_terminal=True, width=20, height=6, soft_wrap=True, highlight=False
    )
    monkeypatch.setattr(dllmark.terminal, "err", console)
    return console.file


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


def test_tokens_appear_where_the_model_writes_them_and_new_ones_stand_out(small_tokenizer):
    live = Recorder()
    show = canvas_view(live, small_tokenizer)
    show(canvas(None, None, 5, None))
    show(canvas(6, None, 5, None))
    show(canvas(6, 7, 5, 8))
    assert [view.plain for view in live.views] == ["░░w2░", "w3░w2░", "w3w4w2w5"]
    assert [parts(view, "bold cyan") for view in live.views] == [["w2"], ["w3"], ["w4", "w5"]]
    assert [parts(view, "dim") for view in live.views] == [["░"] * 3, ["░"] * 2, []]


def test_the_first_text_of_a_batch_is_shown_without_its_prompt_and_under_a_title(small_tokenizer):
    live = Recorder()
    step = canvas(5, None, prompt=3, rows=2)
    step.tokens[1] = 9
    canvas_view(live, small_tokenizer, "text 1 of 2")(step)
    [view] = live.views
    assert view.plain == "text 1 of 2\nw2░"


def test_a_token_that_is_masked_again_is_new_when_it_returns(small_tokenizer):
    live = Recorder()
    show = canvas_view(live, small_tokenizer)
    for word in (5, None, 5):
        show(canvas(word))
    assert [parts(view, "bold cyan") for view in live.views] == [["w2"], [], ["w2"]]


def test_special_tokens_leave_no_trace_and_control_characters_are_spelt_out(tokenizer):
    live = Recorder()
    [escape] = tokenizer.encode("\x1b")
    [end] = tokenizer.encode("<|endoftext|>")
    canvas_view(live, tokenizer)(canvas(int(escape), int(end)))
    assert live.views[0].plain == "\\x1b"


def test_a_text_longer_than_a_line_is_shown_whole_and_then_removed(screen, small_tokenizer):
    with watched(small_tokenizer) as show:
        show(canvas(*[None] * 50))
        show(canvas(*[5] * 25, *[None] * 25))
    assert "░" * 50 in frames(screen)
    assert "w2" * 25 + "░" * 25 in frames(screen)
    assert frames(screen)[-1] == ""


def test_a_text_taller_than_the_screen_leaves_nothing_behind(screen, small_tokenizer):
    with watched(small_tokenizer) as show:
        show(canvas(*[5] * 500))
    assert max(len(frame) for frame in frames(screen)) <= 6 * 20
    assert frames(screen)[-1] == ""


@pytest.mark.parametrize("total", [2, None], ids=["known", "open"])
def test_a_bar_counts_the_steps_and_is_removed(screen, total):
    with step_bar("texts") as count:
        for number in (1, 2):
            count(canvas(5, number=number, total=total))
    assert "texts" in screen.getvalue()
    assert ("100%" in screen.getvalue()) == (total == 2)
    assert frames(screen)[-1] == ""


@pytest.mark.parametrize("display", ["bar", "view"])
def test_where_there_is_no_terminal_nothing_is_shown(capsys, small_tokenizer, display):
    with step_bar("texts") if display == "bar" else watched(small_tokenizer) as show:
        show(canvas(5, None, total=2))
        print("text")
    assert capsys.readouterr() == ("text\n", "")


@pytest.mark.parametrize("display", ["bar", "view"])
def test_standard_output_does_not_pass_through_the_terminal(
    screen, capsys, small_tokenizer, display
):
    with step_bar("texts") if display == "bar" else watched(small_tokenizer) as show:
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
