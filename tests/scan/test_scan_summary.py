"""The summary of a scan, checked against counting by hand and against scipy."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from dllmark.scan.summary import as_text, benjamini_hochberg, summarise, write_summary
from dllmark.scan.work import SCHEMA


@given(
    st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1e-9, 0.01, 0.05]), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.05, 0.2]),
)
def test_discoveries_are_those_of_scipy(p_values, fdr):
    p_values = np.array(p_values)
    adjusted = false_discovery_control(p_values, method="bh")
    discovered, largest = benjamini_hochberg(p_values, len(p_values), fdr)
    if np.any(np.abs(adjusted - fdr) < 1e-12):
        return  # on the edge itself, rounding decides
    assert discovered == int((adjusted <= fdr).sum())
    assert discovered == int((p_values <= largest).sum()) or discovered == 0


@pytest.fixture
def parts(tmp_path):
    """Two files of rows about three input files, and three errors."""
    records = [
        ("a", "watermarked", 1e-9, "k1"), ("a", "not detected", 0.31, "k2"),
        ("b", "watermarked", 0.0, "k2"), ("b", "watermarked", 1e-7, "k1"),
        ("c", "too short", 1.0, "k1"), ("b", "not detected", 0.32, "k1"),
    ]  # fmt: skip
    for number, some in enumerate((records[:3], records[3:])):
        rows = [
            {"path": path, "row": 1, "verdict": verdict, "p_value": p, "key_id": key}
            for path, verdict, p, key in some
        ]
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, tmp_path / f"{number}.parquet")
    (tmp_path / "errors.jsonl").write_text("{}\n{}\n{}\n")
    return sorted(tmp_path.glob("*.parquet")), tmp_path / "errors.jsonl"


def test_counts_are_right(parts):
    summary = summarise(*parts, fpr=1e-6, fdr=0.05)
    histogram = summary.pop("p_values")
    assert summary == {
        "documents": 6,
        "watermarked": 3,
        "not_detected": 2,
        "too_short": 1,
        "errors": 3,
        "fpr": 1e-6,
        "expected_false_hits": pytest.approx(6e-6),
        "benjamini_hochberg": {"fdr": 0.05, "documents": 3, "largest_p_value": 1e-7},
        "watermarked_by_strength": {"clear": 2, "overwhelming": 1},
        "watermarked_by_key": {"k1": 2, "k2": 1},
        "files": 3,
        "watermarked_by_file": [
            {"path": "b", "documents": 3, "watermarked": 2, "rate": pytest.approx(2 / 3)},
            {"path": "a", "documents": 2, "watermarked": 1, "rate": 0.5},
        ],
    }
    assert histogram["width_0.05"] == [3, 0, 0, 0, 0, 0, 2, *[0] * 12, 1]
    by_decade = {decade: n for decade, n in enumerate(histogram["by_decade"]) if n}
    assert by_decade == {0: 3, 7: 1, 9: 1, 29: 1}


def test_without_a_rate_there_are_no_discoveries(parts):
    assert summarise(*parts, fpr=1e-6)["benjamini_hochberg"] is None


def test_the_text_says_what_matters(parts):
    shown = as_text(summarise(*parts, fpr=1e-6, fdr=0.05))
    assert "watermarked: 3, where chance alone would give at most 6e-06 (rate 1e-06)" in shown
    assert "the evidence of those: 2 clear, 1 overwhelming" in shown
    assert "not readable: 3, see errors.jsonl" in shown
    assert "at a false discovery rate of 0.05: 3, with p-values up to 1e-07" in shown
    assert "| 2 | 3 | 66.67 % | b |\n| 1 | 2 | 50.00 % | a |" in shown
    assert "| 2 | k1 |\n| 1 | k2 |" in shown


def test_a_long_list_of_files_is_cut_in_the_text(parts):
    summary = summarise(*parts, fpr=1e-6)
    summary["watermarked_by_file"] *= 15
    assert "10 more files with hits" in as_text(summary)


def test_the_files_are_written_the_same_each_time(parts, tmp_path):
    summary = summarise(*parts, fpr=1e-6)
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_summary(summary, tmp_path / name)
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert sorted(written[0]) == ["p_values.png", "summary.json", "summary.md"]
    assert written[0]["p_values.png"].startswith(b"\x89PNG")
