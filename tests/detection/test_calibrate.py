"""Calibration states how often unmarked texts are hit, and how well that is known."""

import json
import sys

import numpy as np
import pytest
from matplotlib.image import imread
from scipy import stats

from dllmark.detection.calibrate import calibrate, plot_p_values, require_matplotlib
from dllmark.detection.detector import Detector
from dllmark.detection.expected import key_fairness
from dllmark.errors import DllmarkError, InputError

RATES = [0.05, 0.01, 0.005, 0.001]


@pytest.fixture(scope="module")
def fairness(key, tokenizer):
    """What the key makes of ordinary text."""
    return key_fairness(Detector(key, tokenizer).green, tokenizer)


@pytest.fixture(scope="module")
def null(key, tokenizer):
    """The detections of 3000 texts of random tokens, which no key has marked."""
    ids = np.random.default_rng(0).integers(5, tokenizer.vocab_size, (3000, 200))
    return list(Detector(key, tokenizer).detect_many(ids))


def test_each_rate_is_reported_with_the_share_of_texts_it_hit(null, fairness):
    result = calibrate(null, fairness)
    assert [row.fpr for row in result.rows] == RATES
    for row in result.rows:
        hits = sum(detection.p_value <= row.fpr for detection in null)
        assert row.observed.share == hits / 3000
        assert row.observed.low <= row.observed.share <= row.observed.high
        hits = sum(stats.binom.sf(one.green - 1, one.pairs, 0.5) <= row.fpr for one in null)
        assert row.against_gamma.share == hits / 3000 >= row.observed.share


def test_no_more_unmarked_texts_are_hit_than_stated(null, fairness):
    assert all(row.observed.low <= row.fpr for row in calibrate(null, fairness).rows)


def test_a_threshold_leaves_at_most_its_rate_of_texts_above_it(null, fairness):
    z = np.array([detection.z for detection in null])
    for row in calibrate(null, fairness).rows:
        assert np.mean(z > row.threshold.value) <= row.fpr < np.mean(z >= row.threshold.value)
        assert row.threshold.low <= row.threshold.value <= row.threshold.high


def test_a_calibration_says_what_it_was_measured_with(null, key, fairness):
    result = calibrate(null, fairness)
    assert (result.texts, result.key_id, result.scoring) == (3000, key.id, "unique")
    assert result.mean_z == pytest.approx(0, abs=0.1)
    assert result.sd_z == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("count", [1, 3000])
def test_a_calibration_is_strict_json(null, count, fairness):
    record = calibrate(null[:count], fairness).to_dict()
    assert json.loads(json.dumps(record, allow_nan=False))["texts"] == count


def test_a_bound_that_few_texts_cannot_give_is_null(null, fairness):
    few, many = (calibrate(null[:count], fairness).to_dict()["rows"] for count in (10, 3000))
    assert [row["threshold"]["high"] for row in few] == [None] * 4
    assert many[0]["threshold"]["high"] >= many[0]["threshold"]["value"]


def test_no_texts_are_a_clear_error(fairness):
    with pytest.raises(InputError, match="at least one text"):
        calibrate([], fairness)


@pytest.mark.parametrize("count", [1, 3000])
def test_a_plot_is_a_png(null, tmp_path, count):
    plot_p_values(null[:count], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(tmp_path / "plot.png")
    assert pixels.shape[:2] == (750, 750)
    assert pixels[..., :3].std() > 0.01


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch):
    require_matplotlib()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DllmarkError, match=r"pip install 'dllmark\[eval\]'"):
        require_matplotlib()
