"""Texts are read as they are, and what cannot be read is named."""

import io
import itertools
import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmark.detection.documents import Document, read_jsonl, read_text
from dllmark.errors import InputError


def written(folder, content):
    path = folder / "input"
    path.write_bytes(content)
    return str(path)


def give_stdin(monkeypatch, buffer):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer))


class Failing(io.RawIOBase):
    """A file that opens, and breaks when it is read."""

    def readable(self):
        return True

    def readinto(self, _buffer):
        raise OSError(5, "Input/output error")


class Endless:
    """A stream of lines that never ends."""

    closed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __iter__(self):
        return itertools.repeat(b'"again"\n')


@given(st.text().filter(str.strip).filter(lambda text: "\0" not in text))
def test_a_text_is_read_whole_and_unchanged(tmp_path_factory, text):
    path = written(tmp_path_factory.mktemp("text"), b"\xef\xbb\xbf" + text.encode())
    assert read_text(path) == Document(text, path)


def test_a_dash_is_standard_input(monkeypatch):
    give_stdin(monkeypatch, io.BytesIO(b"some text"))
    assert read_text("-").text == "some text"
    give_stdin(monkeypatch, io.BytesIO(b'"some text"'))
    assert [item.text for item in read_jsonl("-")] == ["some text"]


UNREADABLE = {
    b"": "is empty: it needs at least one text",
    b" \n\n": "is empty: it needs at least one text",
    b"\x89PNG\r\n\0\0": "this is binary data, not text",
    b"caf\xe9": "byte 3 is not valid UTF-8; convert the text to UTF-8 first",
}


@pytest.mark.parametrize(("content", "reason"), UNREADABLE.items())
def test_what_is_no_text_is_named(tmp_path, content, reason):
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=reason) as caught:
        read_text(path)
    assert path in str(caught.value)


@pytest.mark.parametrize("read", [read_text, lambda path: list(read_jsonl(path))])
class TestWhatCannotBeRead:
    """Both readers say the same about a file they cannot read."""

    @pytest.mark.parametrize("name", ["missing", "."])
    def test_a_missing_file_or_a_folder(self, tmp_path, read, name):
        with pytest.raises(InputError, match=f"cannot read {tmp_path}"):
            read(str(tmp_path / name))

    def test_a_file_that_breaks(self, monkeypatch, read):
        give_stdin(monkeypatch, Failing())
        with pytest.raises(InputError, match=r"cannot read .*: Input/output error"):
            read("-")

    def test_standard_input_that_is_closed(self, monkeypatch, read):
        monkeypatch.setattr(sys, "stdin", None)
        with pytest.raises(InputError, match="standard input"):
            read("-")

    def test_standard_input_that_was_read_already(self, monkeypatch, read):
        give_stdin(monkeypatch, io.BytesIO(b'"some text"'))
        read("-")
        with pytest.raises(InputError, match="standard input: it is closed, or was read already"):
            read("-")

    @pytest.mark.parametrize("content", [b"", b"\n \r\n"])
    def test_a_file_without_a_text(self, tmp_path, read, content):
        with pytest.raises(InputError, match="is empty: it needs at least one text"):
            read(written(tmp_path, content))


def test_a_line_is_a_string_or_an_object_with_one(tmp_path):
    path = written(
        tmp_path,
        b'\xef\xbb\xbf"first"\r\n'
        b"\n"
        b'{"text": "second", "more": [1]}\n'
        b'{"text": "third", "watermark": {"key_id": "x"}}\n'
        b'{"text": "fourth", "watermark": null}',
    )
    assert list(read_jsonl(path)) == [
        Document("first", f"{path}:1"),
        Document("second", f"{path}:3"),
        Document("third", f"{path}:4", {"key_id": "x"}),
        Document("fourth", f"{path}:5"),
    ]


@given(st.lists(st.text(), min_size=1), st.booleans())
def test_every_text_comes_back_from_its_line(tmp_path_factory, texts, ensure_ascii):
    lines = [json.dumps({"text": text}, ensure_ascii=ensure_ascii) for text in texts]
    path = written(tmp_path_factory.mktemp("lines"), "\n".join(lines).encode())
    assert [item.text for item in read_jsonl(path)] == texts


BAD_LINES = {
    b"plain words": "not a line of JSON",
    b'{"text": "cut': "not a line of JSON",
    b"[" * 100_000: "not a line of JSON",
    b"9" * 10_000: "not a line of JSON",
    b'{"txt": "word"}': 'no string under "text": write each line as {"text": "..."}',
    b'{"text": 7}': 'no string under "text": write each line as {"text": "..."}',
    b"7": 'no string under "text": write each line as {"text": "..."}',
    b'["text"]': 'no string under "text": write each line as {"text": "..."}',
    b'{"text": "word", "watermark": "x"}': '"watermark" is not an object',
    b'{"text": "word", "watermark": []}': '"watermark" is not an object',
    b'"\\ud800"': "the text holds lone surrogates",
    b'"\xff"': "byte 1 is not valid UTF-8",
    b'"a\0b"': "this is binary data",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_a_bad_line_is_named_and_the_others_are_read(tmp_path, line, reason):
    path = written(tmp_path, b'"before"\n' + line + b'\n"after"\n')
    before, error, after = read_jsonl(path)
    assert (before, after) == (Document("before", f"{path}:1"), Document("after", f"{path}:3"))
    assert isinstance(error, InputError)
    assert str(error).startswith(f"{path}:2: {reason}")


@given(st.lists(st.binary(min_size=1) | st.text(min_size=1).map(str.encode), min_size=1))
def test_any_line_is_a_text_or_an_error(tmp_path_factory, lines):
    path = written(tmp_path_factory.mktemp("any"), b"\n".join([b'"a text"', *lines]))
    first, *others = read_jsonl(path)
    assert first == Document("a text", f"{path}:1")
    assert all(isinstance(item, Document | InputError) for item in others)


def test_lines_are_handed_on_before_the_last_is_read(monkeypatch):
    give_stdin(monkeypatch, Endless())
    assert [item.text for item in itertools.islice(read_jsonl("-"), 3)] == ["again"] * 3
