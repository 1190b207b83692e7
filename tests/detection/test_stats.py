"""The numbers of a verdict agree with exact arithmetic and with scipy."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dllmark.detection.stats import (
    binomial_tail,
    family_wise,
    one_of_family,
    share_interval,
    threshold,
    z_score,
)
from dllmark.errors import InputError


def exact_tail(green: int, pairs: int, gamma: float) -> Fraction:
    """P(X ≥ green) in rational arithmetic, term by term."""
    p = Fraction(gamma)
    return sum(
        (math.comb(pairs, k) * p**k * (1 - p) ** (pairs - k) for k in range(green, pairs + 1)),
        start=Fraction(0),
    )


@given(st.data(), st.integers(0, 120), st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.999]))
def test_the_p_value_is_the_exact_binomial_tail(data, pairs, gamma):
    green = data.draw(st.integers(0, pairs))
    assert float(binomial_tail(green, pairs, gamma)) == pytest.approx(
        float(exact_tail(green, pairs, gamma)), rel=1e-12
    )


@given(st.floats(0, 1), st.integers(1, 2**20))
def test_the_correction_for_many_keys_is_exact_where_p_is_tiny_too(p_value, tried):
    exact = 1 - (1 - Fraction(p_value)) ** min(tried, 50)
    assert float(family_wise(p_value, min(tried, 50))) == pytest.approx(float(exact), rel=1e-12)
    assert p_value <= float(family_wise(p_value, tried)) * (1 + 1e-12) <= 1 + 1e-12
    assert float(family_wise(1e-12, 2**20)) == pytest.approx(2**20 * 1e-12, rel=1e-6)


@given(st.floats(1e-12, 0.9), st.integers(1, 2**20))
def test_the_rate_of_one_test_gives_the_rate_of_all(rate, tried):
    assert float(family_wise(one_of_family(rate, tried), tried)) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize(("gamma", "green"), [(0.5, 997), (0.5, 900), (0.25, 850), (0.75, 999)])
def test_p_values_are_right_to_twelve_digits_where_they_are_tiny(gamma, green):
    exact = exact_tail(green, 1000, gamma)
    assert float(binomial_tail(green, 1000, gamma)) == pytest.approx(float(exact), rel=1e-12)
    assert gamma == 0.75 or exact < 1e-150


@pytest.mark.parametrize("gamma", [0.01, 0.1, 0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("longest", [10, 100, 1000, 10_000, 100_000])
def test_p_values_agree_with_scipy_to_twelve_digits_far_into_the_tail(gamma, longest):
    rng = np.random.default_rng(longest)
    pairs = rng.integers(1, longest + 1, 1000)
    spread = np.sqrt(pairs * gamma * (1 - gamma))
    green = np.round(pairs * gamma + rng.uniform(-8, 14, 1000) * spread)
    green = np.clip(green, 0, pairs).astype(int)
    expected = stats.binom.sf(green - 1, pairs, gamma)
    np.testing.assert_allclose(binomial_tail(green, pairs, gamma), expected, rtol=1e-12)
    if longest >= 1000 and gamma >= 0.1:
        assert expected.min() < 1e-30


def test_p_values_of_very_long_texts_are_still_right():
    green = np.array([500_000, 503_000, 510_000])
    expected = stats.binom.sf(green - 1, 1_000_000, 0.5)
    np.testing.assert_allclose(binomial_tail(green, 1_000_000, 0.5), expected, rtol=1e-10)
    assert binomial_tail(1_000_000, 1_000_000, 0.5) == 0


def test_more_green_pairs_than_pairs_cannot_be():
    assert binomial_tail([4, 9], 3, 0.5).tolist() == [0.0, 0.0]


def test_nothing_scored_is_no_evidence():
    assert binomial_tail(0, 0, 0.5) == 1
    assert z_score(0, 0, 0.5) == 0


@given(st.integers(1, 10_000), st.floats(0.01, 0.99))
def test_z_is_the_papers_equation(pairs, gamma):
    green = pairs // 3
    expected = (green - gamma * pairs) / math.sqrt(gamma * (1 - gamma) * pairs)
    assert float(z_score(green, pairs, gamma)) == pytest.approx(expected)


@settings(max_examples=30)
@given(st.data(), st.integers(1, 2000))
def test_intervals_are_scipys_exact_ones(data, total):
    hits = data.draw(st.integers(0, total))
    ours = share_interval(hits, total)
    theirs = stats.binomtest(hits, total).proportion_ci(0.95, "exact")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert ours.low <= ours.share <= ours.high


def test_a_share_of_nothing_is_refused():
    with pytest.raises(InputError):
        share_interval(0, 0)
    with pytest.raises(InputError):
        share_interval(5, 4)


@given(st.lists(st.floats(-10, 10), min_size=1), st.sampled_from([0.5, 0.05, 0.01, 0.001]))
def test_at_most_the_stated_share_of_calibration_scores_exceeds_the_threshold(scores, fpr):
    limit = threshold(scores, fpr)
    assert sum(score > limit.value for score in scores) <= fpr * len(scores) + 1e-9
    below = [score for score in scores if score < limit.value]
    if below:  # no smaller score would do
        assert sum(score > max(below) for score in scores) > fpr * len(scores) - 1e-9
    assert limit.low <= limit.value <= limit.high


def test_the_interval_of_a_threshold_holds_the_true_one_in_95_of_100_samples():
    rng = np.random.default_rng(5)
    truth = stats.norm.isf(0.05)
    limits = [threshold(rng.normal(size=400), 0.05) for _ in range(1000)]
    held = sum(limit.low <= truth <= limit.high for limit in limits)
    assert stats.binom.cdf(held, 1000, 0.95) > 1e-3


def test_a_small_sample_does_not_bound_a_rare_threshold_from_above():
    assert threshold(np.arange(50.0), 0.01).high == math.inf


@pytest.mark.parametrize(("scores", "fpr"), [([], 0.1), ([math.nan], 0.1), ([1.0], 0), ([1.0], 1)])
def test_a_threshold_of_nothing_or_at_no_rate_is_refused(scores, fpr):
    with pytest.raises(InputError):
        threshold(scores, fpr)
