"""What is cooled is as sure as without the mark, and no colder than that takes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_joint import NaiveAdaptive, NaiveCooled, NaiveLeftmost
from naive_marks import BLOCK, PROMPT, TOKENS
from tiny import steps_of

from dllmark.marking.watermark import Watermark
from dllmark.sampling.cooling import cooled, least_cooling
from dllmark.sampling.settings import Llada

SAMPLER = Llada(TOKENS, BLOCK, 0.8, apart=True)


@pytest.mark.parametrize(("temperature", "per_step"), [(0, 1), (0.3, 1), (0.8, 1), (0.8, 2)])
def test_cooled_joint_writes_what_its_formulas_say(endless, small_key, temperature, per_step):
    mark = Watermark(small_key, "cooled-joint", tokenizer=endless.tokenizer)
    sampler = replace(SAMPLER, steps=TOKENS // per_step, temperature=temperature)
    naive, warm = (
        kind(endless, small_key, temperature, mark.delta) for kind in (NaiveCooled, NaiveAdaptive)
    )
    warm.aim = naive.aim
    [*_, last] = steps_of(endless, sampler, mark, [PROMPT], TOKENS, seed=4)
    expected = naive.write(per_step, 4)
    assert last.tokens[0, last.start :].tolist() == expected
    assert expected != warm.write(per_step, 4)  # else nothing would have been cooled


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_from_left_to_right_the_tokens_of_one_place_are_weighed(endless, small_key, temperature):
    mark = Watermark(small_key, "cooled-joint", 24.0, tokenizer=endless.tokenizer)
    sampler = Llada(TOKENS, BLOCK, temperature, order="left_to_right")
    [*_, last] = steps_of(endless, sampler, mark, [PROMPT], TOKENS, seed=5)
    expected = NaiveLeftmost(endless, small_key, temperature, 24.0).write(1, 5)
    assert last.tokens[0, last.start :].tolist() == expected


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.floats(0, 20), st.integers(2, 40))
def test_what_is_cooled_is_as_sure_as_without_the_mark(seed, strength, count):
    random = torch.Generator().manual_seed(seed)
    sure = (4 * torch.randn(3, count, generator=random, dtype=torch.float64)).log_softmax(1)
    before = sure / 0.8 + torch.randn(3, count, generator=random)
    after = before + strength * torch.rand(3, count, generator=random)
    by = least_cooling(before, after, sure, 4.0)
    was, warm, cold = (
        (chance.softmax(1) * sure).sum(1) for chance in (before, after, after + by * sure)
    )
    assert ((by[:, 0] == 0) == (warm >= was)).all()
    exact = (by[:, 0] > 0) & (by[:, 0] < 3.999)
    torch.testing.assert_close(cold[exact], was[exact], rtol=0, atol=0.01)
    assert (cold <= was + 0.01)[by[:, 0] > 0].all()


def test_what_has_no_chance_has_none_after_cooling():
    sure = torch.tensor([[[0.6, 0.4], [0.9, 0.1]]]).log()
    chances = torch.tensor([[[0.6, 0.4], [0.0, 0.0]]]).log()
    for temperature in (0.0, 0.8):
        weights = cooled(chances, chances + 1.0, sure, temperature)
        assert weights[0, 1].isneginf().all() and weights[0, 0].isfinite().all()
