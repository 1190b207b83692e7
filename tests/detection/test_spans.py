"""Stretches are found where they were planted, and rarely anywhere else."""

import numpy as np
import pytest
from scipy import stats

from dllmark.detection.spans import best_segments


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_text_without_a_mark_shows_a_stretch_no_more_often_than_stated(gamma):
    rng = np.random.default_rng(0)
    hits = sum(bool(best_segments(rng.random(800) < gamma, gamma, 0.05)) for _ in range(1500))
    assert stats.binom.sf(hits - 1, 1500, 0.05) > 1e-3


def test_two_planted_stretches_are_both_found_in_order():
    rng = np.random.default_rng(1)
    green = rng.random(3000) < 0.5
    for start in (500, 2000):
        green[start : start + 200] = rng.random(200) < 0.9
    segments = best_segments(green, 0.5, 0.01)
    assert len(segments) == 2
    for segment, start in zip(segments, (500, 2000), strict=True):
        assert abs(segment.start - start) < 30
        assert abs(segment.end - start - 200) < 30
        assert segment.green == green[segment.start : segment.end].sum()
        assert segment.p_value <= 0.01


def test_a_long_weak_mark_is_found_too():
    rng = np.random.default_rng(2)
    [segment] = best_segments(rng.random(4000) < 0.6, 0.5, 0.01)
    assert segment.end - segment.start > 3500


def test_nothing_has_no_stretches():
    assert best_segments(np.zeros(0, dtype=bool), 0.5, 0.01) == []
    assert best_segments(np.zeros(50, dtype=bool), 0.5, 0.01) == []
