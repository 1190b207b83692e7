"""The demonstration: two texts written in the open, two verdicts, and nothing left behind."""

import importlib.util
import re
import runpy
import secrets
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from screens import terminal
from tiny import tiny_model

import dllmark.commands.demo
import dllmark.terminal
from dllmark.models.families import EMBEDDED

pytestmark = pytest.mark.usefixtures("one_core")

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
VERDICT = re.compile(
    r"^verdict: ([a-z ]+) \(.*\)  z (-?[0-9.]+)  p (\S+)  \d+ of \d+ pairs green", re.M
)


@dataclass
class Shown:
    """What a demonstration left on the two outputs and in the folder it ran in."""

    out: str
    err: str
    files: list[str]

    @property
    def plain(self):
        """Standard output without its colours."""
        return COLOUR.sub("", self.out)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A demonstration on a terminal, half as long, with a fixed key so that it ends the same."""
    folder, out, err = tmp_path_factory.mktemp("empty"), terminal(100, 50), terminal(100, 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for place in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
            patch.setenv(place, str(folder))
        patch.setattr(secrets, "token_bytes", lambda count: bytes(range(count)))
        patch.setattr(dllmark.commands.demo, "TOKENS", 64)
        patch.setattr(dllmark.terminal, "out", out)
        patch.setattr(dllmark.terminal, "err", err)
        dllmark.commands.demo.demo()
    files = [path.name for path in folder.rglob("*")]
    return Shown(out.file.getvalue(), err.file.getvalue(), files)


def test_the_marked_text_is_recognised_and_the_other_is_not(shown):
    (marked, z, p), (other, *_) = VERDICT.findall(shown.plain)
    assert (marked, other) == ("watermarked", "too short")  # 64 tokens, where the demo has 128
    assert float(z) > 2.33
    assert float(p) < 0.01


def test_both_texts_are_shown_with_the_colours_of_their_tokens(shown):
    titles = ["With the watermark:", "Without it:", "the key favours this token", "Now try:"]
    places = [shown.plain.index(title) for title in titles]
    assert places == sorted(places)
    marked, other = shown.out.split("Without it:")
    for text in (marked, other):
        assert "\x1b[30;42m" in text and "\x1b[30;41m" in text  # black on green, on red
        assert len(COLOUR.sub("", text).split()) > 25


def test_tokens_appear_out_of_order_where_masks_were(shown):
    frames = COLOUR.sub("", shown.err).split("\x1b[2K")
    assert any(re.search(r"░\s*[a-z]+[^░]*░", frame) for frame in frames)
    assert "\x1b[1;4" in shown.err  # bold and underlined, for the newest
    assert "░" not in shown.out


def test_both_texts_are_written_at_once(shown):
    step = re.compile(r"With the watermark: step 9 of 64.*?Without it: step (\d+) of 64", re.S)
    assert set(step.findall(COLOUR.sub("", shown.err))) == {"9"}


def test_it_says_where_to_go_next_and_leaves_no_files(shown):
    after = shown.plain.partition("Now try:")[2]
    for step in ("dllmark keygen", "dllmark generate", "dllmark detect"):
        assert step in after
    assert shown.files == []


@pytest.mark.parametrize("on_the_path", [True, False])
def test_the_commands_to_try_next_work_where_the_user_stands(tmp_path, monkeypatch, on_the_path):
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    (folder / "dllmark").write_text("#!/bin/sh\n")
    (folder / "dllmark").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(folder) if on_the_path else str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(folder / "dllmark"), "demo"])
    commands = dllmark.commands.demo._next_commands().splitlines()[1:5]
    typed = [shlex.split(command)[0] for command in commands]
    assert typed == ["dllmark" if on_the_path else "my env/bin/dllmark"] * 4


def test_the_commands_to_try_next_do_not_meet_an_older_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my.key", "my-2.key"):
        (tmp_path / name).touch()
    assert "keygen -o my-3.key\n" in dllmark.commands.demo._next_commands()


def test_the_script_of_ci_reads_every_command_to_try_next():
    stranger = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "stranger.py"))
    commands, page = stranger["advice"](dllmark.commands.demo._next_commands())
    verbs = [shlex.split(command)[1] for command in commands]
    assert verbs == ["keygen", "generate", "generate", "detect", "serve"]
    assert page == "http://127.0.0.1:8000"


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", None])
def test_the_page_is_named_where_it_can_be_served(monkeypatch, missing):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    assert (" serve --key my.key\n" in dllmark.commands.demo._next_commands()) == (not missing)


def test_the_secret_of_its_key_is_not_shown(shown):
    assert bytes(range(16)).hex() not in shown.out + shown.err


def test_in_a_pipe_the_colours_are_signs_and_nothing_moves(run, tokenizer, monkeypatch):
    model = replace(tiny_model(tokenizer), family=EMBEDDED)
    monkeypatch.setattr("dllmark.models.loading.load_model", lambda source: model)
    monkeypatch.setattr(dllmark.commands.demo, "TOKENS", 32)
    result = run("demo")
    assert (result.status, result.err) == (0, "")
    assert "\x1b" not in result.out and "░" not in result.out
    assert len(VERDICT.findall(result.out)) == 2
    assert "+ the key favours this token after the one before it; - it does not" in result.out
