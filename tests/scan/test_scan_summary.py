"""The summary of a scan, checked against counting by hand and against scipy."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from dllmark.errors import InputError
from dllmark.scan.rule import Rule
from dllmark.scan.summary import as_text, read_hits, summarise, write_summary
from dllmark.scan.work import SCHEMA

FIXED = Rule("fpr", 1e-6)
SHARE = Rule("fdr", 0.05)


@given(
    st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1e-9, 0.01, 0.05]), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.05, 0.2]),
)
def test_discoveries_are_those_of_scipy(p_values, fdr):
    p_values = np.array(p_values)
    adjusted = false_discovery_control(p_values, method="bh")
    largest = Rule("fdr", fdr).largest_p_value(p_values, len(p_values))
    discovered = 0 if largest is None else int((p_values <= largest).sum())
    if np.any(np.abs(adjusted - fdr) < 1e-12):
        return  # on the edge itself, rounding decides
    assert discovered == int((adjusted <= fdr).sum())


@pytest.mark.parametrize("rate", [0, 1, 2, float("nan")])
def test_impossible_rates_are_refused(rate):
    with pytest.raises(InputError, match=r"false discovery rate lies in \(0, 1\)"):
        Rule("fdr", rate)


@pytest.fixture
def parts(tmp_path):
    """Two files of rows about three input files, and three errors."""
    records = [
        ("a", False, 1e-9, "k1"), ("a", False, 0.31, "k2"), ("b", False, 0.0, "k2"),
        ("b", False, 1e-3, "k1"), ("c", True, 1.0, "k1"), ("b", False, 0.32, "k1"),
    ]  # fmt: skip
    for number, some in enumerate((records[:3], records[3:])):
        rows = [
            {"path": path, "row": 1, "too_short": short, "p_value": p, "key_id": key}
            for path, short, p, key in some
        ]
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, tmp_path / f"{number}.parquet")
    (tmp_path / "errors.jsonl").write_text("{}\n{}\n{}\n")
    return sorted(tmp_path.glob("*.parquet")), tmp_path / "errors.jsonl"


@pytest.fixture
def summed(parts, tmp_path):
    """Sum those rows up by a rule."""
    return lambda rule: summarise(*parts, rule, tmp_path / "hits.csv")


def test_counts_are_right(summed, tmp_path):
    summary = summed(SHARE)
    histogram = summary.pop("p_values")
    assert summary == {
        "documents": 6,
        "watermarked": 3,
        "not_detected": 2,
        "too_short": 1,
        "errors": 3,
        "fdr": 0.05,
        "largest_p_value": 1e-3,
        "expected_false_hits": pytest.approx(0.15),
        "watermarked_by_strength": {"clear": 1, "overwhelming": 1, "weak": 1},
        "watermarked_by_key": {"k1": 2, "k2": 1},
        "files": 3,
        "watermarked_by_file": [
            {"path": "b", "documents": 3, "watermarked": 2, "rate": pytest.approx(2 / 3)},
            {"path": "a", "documents": 2, "watermarked": 1, "rate": 0.5},
        ],
    }
    assert histogram["width_0.05"] == [3, 0, 0, 0, 0, 0, 2, *[0] * 12, 1]
    by_decade = {decade: n for decade, n in enumerate(histogram["by_decade"]) if n}
    assert by_decade == {0: 3, 3: 1, 9: 1, 29: 1}
    hits = [(hit["path"], float(hit["p_value"])) for hit in read_hits(tmp_path / "hits.csv")]
    assert hits == [("a", 1e-9), ("b", 0.0), ("b", 1e-3)]


def test_under_a_false_positive_rate_only_a_documents_own_p_value_counts(summed, tmp_path):
    summary = summed(FIXED)
    assert (summary["watermarked"], summary["not_detected"]) == (2, 3)
    assert (summary["fpr"], summary["largest_p_value"]) == (1e-6, 1e-9)
    assert summary["expected_false_hits"] == pytest.approx(6e-6)
    assert [hit["path"] for hit in read_hits(tmp_path / "hits.csv")] == ["a", "b"]


def test_the_text_says_what_the_rate_means(summed):
    shown = as_text(summed(SHARE))
    assert "- watermarked: 3, listed in hits.csv\n- the evidence of those: 1 clear, " in shown
    assert "not readable: 3, see errors.jsonl" in shown
    assert "a p-value of at most 0.001. " in shown
    assert "at most 5 % of the hits are expected to be false, that is 0.15 of 3." in shown
    assert "| 2 | 3 | 66.67 % | b |\n| 1 | 2 | 50.00 % | a |" in shown
    assert "| 2 | k1 |\n| 1 | k2 |" in shown
    fixed = as_text(summed(FIXED))
    assert "Chance alone makes at most 6e-06 of these documents a hit." in fixed
    none = as_text({**summed(SHARE), "watermarked": 0, "watermarked_by_file": []})
    assert "If none is marked, the chance of any hit at all is at most 5 %." in none


def test_a_long_list_of_files_is_cut_in_the_text(summed):
    summary = summed(SHARE)
    summary["watermarked_by_file"] *= 15
    assert "10 more files with hits" in as_text(summary)


def test_the_files_are_written_the_same_each_time(summed, tmp_path):
    summary = summed(SHARE)
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_summary(summary, tmp_path / name)
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert sorted(written[0]) == ["p_values.png", "summary.json", "summary.md"]
    assert written[0]["p_values.png"].startswith(b"\x89PNG")
