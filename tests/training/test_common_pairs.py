"""The list of common pairs: what is counted, and how often."""

import json
import sys

import common_pairs


def test_units_are_words_digits_and_what_stands_between_them():
    text = "I don’t know 'it' in 1998.\n\nThe_x = f(a)\n    if x:\n"
    units = common_pairs.UNIT.findall(text)
    assert "".join(units) == text
    expected = ["I", " don", "’t", " know", " '", "it", "'", " in", " 1", "9", "9", "8"]
    expected += [".\n\n", "The", "_", "x", " =", " f", "(", "a", ")\n   ", " if", " x", ":\n"]
    assert units == expected


def test_a_pair_counts_once_in_a_passage_and_kinds_weigh_the_same(tmp_path, monkeypatch):
    often = "one of the ones " * 60  # a passage of 900 characters has the same pair many times
    seldom = "two in a row is " * 60
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in (often, seldom, seldom, seldom))
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "code.py").write_text(often)
    made = tmp_path / "list.json"
    arguments = ["x", f"a={tmp_path / 'a.jsonl'}", f"b={tmp_path / 'b'}", "-o", str(made)]
    monkeypatch.setattr(sys, "argv", arguments)
    common_pairs.main()
    record = json.loads(made.read_text())
    assert record["kinds"] == ["a", "b"]
    assert record["common"][" of"] == {" the": 1000 * (0.25 + 1) / 2}
    assert record["common"][" in"] == {" a": 1000 * 0.75 / 2}
    assert record["lefts"][" of"] == 625
