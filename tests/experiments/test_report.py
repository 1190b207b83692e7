"""A report says the same in every form."""

import csv
import json

import pytest

from dllmark.errors import InputError
from dllmark.experiments.report import Curve, Report


def example():
    report = Report("A title", {"model": "tiny", "most_repeats": 0.5}, axes=("x", "y"))
    rate = "TPR at 1 % FPR"
    report.add({"strategy": "kgw", rate: 50.0, f"{rate}, low": 30.2, f"{rate}, high": 69.8},
               (1.0, 2.0, 3.0), "LLaDA")  # fmt: skip
    report.add({"strategy": "a|b\nc", "texts": "not run", "median PPL": float("nan")})
    report.curves.append(Curve("panel", "kgw", [(1.0, 2.0), (2.0, 3.0)]))
    return report


def test_markdown_has_intervals_in_brackets_and_the_paper_beside():
    lines = example().markdown().splitlines()
    assert lines[0] == "# A title"
    assert lines[2] == "model tiny, most repeats 0.5"
    assert lines[4].startswith("| strategy | TPR at 1 % FPR | 0.5 % FPR, LLaDA |")
    assert lines[6] == "| kgw | 50.0 (30.2–69.8) | 1 | 2 | 3 | – | – |"
    assert lines[7] == "| a\\|b c | – | – | – | – | not run | – |"


def test_every_form_is_written(tmp_path):
    paths = example().write(tmp_path / "new", "table")
    assert [path.suffix for path in paths] == [".md", ".csv", ".json", ".png"]
    assert paths[3].read_bytes().startswith(b"\x89PNG")
    with paths[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["TPR at 1 % FPR, low"] == "30.2"
    record = json.loads(paths[2].read_text(), parse_constant=lambda name: 1 / 0)
    assert record["rows"][1]["median PPL"] is None
    assert record["about"] == {"model": "tiny", "most_repeats": 0.5}


def test_a_curve_without_a_point_is_not_drawn(tmp_path):
    report = example()
    report.curves.append(Curve("panel", "predictive", []))
    assert (tmp_path / "table.png") in report.write(tmp_path, "table")
    report.curves = [Curve("panel", "predictive", [])]
    assert [path.suffix for path in report.write(tmp_path, "none")] == [".md", ".csv", ".json"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write to .*below: Not a directory"):
        example().write(tmp_path / "file" / "below", "table")
