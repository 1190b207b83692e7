"""A text while it is written: masks become words, in the key's colours, and no word is cut."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from screens import canvas, frames, terminal

import dllmark.terminal
from dllmark.commands.watch import TextView, in_lines, watched
from dllmark.detection.detector import Detector


@pytest.fixture
def screen(monkeypatch):
    """Standard error as a terminal of 20 columns and 6 lines."""
    console = terminal()
    monkeypatch.setattr(dllmark.terminal, "err", console)
    return console.file


def shown(tokenizer, *steps, row=0, title="text", detector=None):
    """What a text shows after each step: the line above it, and the text itself."""
    view = TextView(tokenizer, row, title, detector, 200)
    return [view(step) for step in steps]


def below(view):
    """The text itself, without the line above it."""
    return view.plain.partition("\n")[2]


def parts(view, style):
    """The pieces of a text that have a style."""
    styled = [span for span in view.spans if style in str(span.style).split(" ", 2)]
    return [view.plain[span.start : span.end] for span in styled]


def test_tokens_appear_where_the_model_writes_them_and_new_ones_stand_out(small_tokenizer):
    steps = canvas(None, None, 5, None), canvas(6, None, 5, None), canvas(6, 7, 5, 8)
    views = shown(small_tokenizer, *steps)
    assert [below(view) for view in views] == ["░░w2░", "w3░w2░", "w3w4w2w5"]
    assert [parts(view, "underline") for view in views] == [["w2"], ["w3"], ["w4", "w5"]]
    assert [parts(view, "dim")[1:] for view in views] == [["░"] * 3, ["░"] * 2, []]


def test_each_text_of_a_batch_stands_under_its_title_and_step_without_its_prompt(small_tokenizer):
    step = canvas(5, None, prompt=3, rows=2, number=3, total=8)
    step.tokens[1] = 9
    first, second = (shown(small_tokenizer, step, row=row)[0] for row in (0, 1))
    assert first.plain == "text: step 3 of 8\nw2░"
    assert second.plain == "text: step 3 of 8\nw6░"


def test_pairs_have_the_colours_of_the_key_as_soon_as_both_tokens_are_there(
    small_key, small_tokenizer
):
    detector = Detector(small_key, small_tokenizer)
    words = [5, 6, 7, 8, 9, 10, 11, 12]
    _, green = detector.colours(words)
    holes = [word if at % 2 else None for at, word in enumerate(words)]
    half, whole = shown(small_tokenizer, canvas(*holes), canvas(*words), detector=detector)
    assert not parts(half, "green") and not parts(half, "red")
    assert "0 of 0 pairs green" in half.plain
    names = [f"w{word - 3}" for word in words[1:]]
    for colour, wanted in (("green", True), ("red", False)):
        styled = [
            whole.plain[span.start : span.end]
            for span in whole.spans
            if str(span.style).endswith(f"on {colour}")
        ]
        assert styled == [name for name, is_green in zip(names, green, strict=True)
                          if is_green == wanted]  # fmt: skip
    assert f"{int(green.sum())} of 7 pairs green" in whole.plain


def test_a_token_that_is_masked_again_is_new_when_it_returns(small_tokenizer):
    views = shown(small_tokenizer, *(canvas(word) for word in (5, None, 5)))
    assert [parts(view, "underline") for view in views] == [["w2"], [], ["w2"]]


def test_special_tokens_leave_no_trace_and_control_characters_are_spelt_out(tokenizer):
    [escape] = tokenizer.encode("\x1b")
    [end] = tokenizer.encode("<|endoftext|>")
    assert below(shown(tokenizer, canvas(int(escape), int(end)))[0]) == "\\x1b"


PIECES = st.lists(
    st.none() | st.text("ab \n", min_size=1, max_size=9).map(lambda text: (text, "")), max_size=30
)


@given(PIECES, st.integers(4, 20))
@example([(" ", ""), ("aaaa", "")], 4)
def test_lines_end_between_words_and_nothing_is_lost(pieces, width):
    lines = "".join(text for text, _ in in_lines(pieces, width)).split("\n")
    whole = "".join("░" if piece is None else piece[0] for piece in pieces)
    assert "".join("".join(lines).split()) == "".join(whole.split())
    words = set(whole.replace("░", " ").split())
    for line in lines:
        assert set(line.replace("░", " ").split()) <= words
        longest = max((len(word) for word in line.replace("░", " ").split()), default=0)
        assert len(line) <= width or longest > width or line != line.rstrip()


def test_a_text_longer_than_a_line_is_shown_whole_and_then_removed(screen, small_tokenizer):
    with watched(small_tokenizer, ["t"]) as show:
        show(canvas(*[None] * 50))
        show(canvas(*[5] * 25, *[None] * 25))
    assert any(frame.endswith("░" * 50) for frame in frames(screen))
    assert any(frame.endswith("w2" * 25 + "░" * 25) for frame in frames(screen))
    assert frames(screen)[-1] == ""


def test_several_texts_are_shown_at_once(screen, small_tokenizer):
    with watched(small_tokenizer, ["one", "other"]) as show:
        show(canvas(5, None, rows=2, total=4))
    assert any("one: step 1 of 4w2░other: step 1 of 4w2░" in frame for frame in frames(screen))


def test_a_text_taller_than_the_screen_leaves_nothing_behind(screen, small_tokenizer):
    with watched(small_tokenizer, ["t"]) as show:
        show(canvas(*[5] * 500))
    assert max(len(frame) for frame in frames(screen)) <= 6 * 20
    assert frames(screen)[-1] == ""


def test_where_there_is_no_terminal_nothing_is_drawn(capsys, small_tokenizer):
    with watched(small_tokenizer, ["t"]) as show:
        show(canvas(5, None, total=2))
        print("text")
    assert capsys.readouterr() == ("text\n", "")


@pytest.mark.parametrize(("titles", "shown"), [(["text 1 of 1"], "text 1 of 1"),
                                               (["one", "other"], "2 texts")])  # fmt: skip
def test_where_there_is_no_terminal_it_says_how_far_the_writing_is(
    capsys, monkeypatch, small_tokenizer, titles, shown
):
    monkeypatch.setattr(dllmark.terminal, "SILENCE", 0.0)
    with watched(small_tokenizer, titles) as show:
        show(canvas(5, None, total=2))
    assert capsys.readouterr().err == f"writing {shown}: 50 %\n"


def test_standard_output_does_not_pass_through_the_view(screen, capsys, small_tokenizer):
    with watched(small_tokenizer, ["t"]) as show:
        show(canvas(5, None, total=2))
        print("to the pipe")
    assert capsys.readouterr().out == "to the pipe\n"
    assert "to the pipe" not in screen.getvalue()
