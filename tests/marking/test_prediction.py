"""Predicted tokens and their probabilities: a softmax, in an order that ties cannot change."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dllmark.marking.prediction import FARTHEST, comparable, fixed_point_exp, probabilities, top_k

logits = st.lists(st.sampled_from([-torch.inf, -3.0, -0.0, 0.0, 0.5, 7.25]), min_size=1)


@given(values=logits, count=st.integers(1, 8))
def test_the_largest_come_first_and_the_lowest_id_among_equals(values, count):
    row, count = comparable(torch.tensor(values)), min(count, len(values))
    ids, best = top_k(row, count)
    expected = sorted(range(len(values)), key=lambda id_: (-values[id_], id_))[:count]
    assert ids.tolist() == expected
    assert torch.equal(best, row[ids])


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_probabilities_are_those_of_the_softmax(spread):
    rows = spread * torch.randn(3, 50_000, generator=torch.manual_seed(0))
    ids, best = top_k(comparable(rows), 8)
    exact = rows.double().softmax(-1).gather(-1, ids)
    torch.testing.assert_close(probabilities(rows, best).double(), exact, rtol=3e-7, atol=0)


def test_the_sum_does_not_depend_on_the_order():
    row = torch.randn(10_000, generator=torch.manual_seed(0))
    best = row.amax(-1, keepdim=True)
    shuffled = row[torch.randperm(len(row), generator=torch.manual_seed(1))]
    assert torch.equal(probabilities(row, best), probabilities(shuffled, best))


def test_what_is_far_or_no_number_has_no_share():
    gaps = torch.tensor([FARTHEST - 1e-3, FARTHEST, torch.inf, torch.nan])
    assert fixed_point_exp(gaps).tolist() == [0, 0, 0, 0]
    assert fixed_point_exp(torch.zeros(1)).item() * 2**18 < 2**63  # the sum over a large vocabulary


def test_a_row_without_a_largest_number_has_no_probabilities():
    for value in (-torch.inf, torch.inf, torch.nan):
        row = comparable(torch.full((5,), value))
        assert probabilities(row, top_k(row, 2)[1]).isnan().all()
