"""Parallel decoding reveals what is certain enough, and at least one token a step."""

import pytest
import torch
from tiny import END, MASK, PROMPTS, order_of, scripted_model, steps_of, written

from dllmark.marking.watermark import Watermark
from dllmark.sampling.settings import Llada, Parallel


def revealed_each_step(steps):
    masks = [step.revealed[0, step.start :].nonzero()[:, 0].tolist() for step in steps]
    return [sorted(set(new) - set(old)) for old, new in zip([[], *masks], masks, strict=False)]


def test_a_step_reveals_all_above_the_threshold_or_the_most_certain(small_tokenizer):
    certain = [0.5, 0.95, 0.8, 0.97, 0.6, 0.99, 0.3, 0.2]
    model = scripted_model(small_tokenizer, [{5: p} for p in certain])
    options = {"prompts": ["w1"], "tokens": 8}
    steps = steps_of(model, Parallel(threshold=0.9, block_length=4, temperature=0), **options)
    assert revealed_each_step(steps) == [[1, 3], [2], [0], [5], [4], [6], [7]]
    steps = steps_of(model, Parallel(threshold=0.55, block_length=8, temperature=0), **options)
    assert revealed_each_step(steps) == [[1, 2, 3, 4, 5], [0], [6], [7]]
    assert [(step.number, step.total) for step in steps] == [(i, None) for i in range(1, 5)]


def test_texts_of_a_batch_advance_by_themselves(model):
    sampler = Parallel(threshold=0.3, block_length=16, temperature=0)
    together = written(model, sampler)
    for row, prompt in enumerate(PROMPTS):
        alone = written(model, sampler, prompts=[prompt])[0]
        assert torch.equal(together[row, -len(alone) :], alone)


def test_a_threshold_of_1_is_one_token_at_a_time(model):
    sure = Llada(steps=32, block_length=16, temperature=0)
    assert torch.equal(
        written(model, Parallel(1.0, block_length=16, temperature=0)), written(model, sure)
    )
    assert len(order_of(steps_of(model, Parallel(1.0, temperature=0)))) == 32


def test_a_lower_threshold_takes_fewer_steps(model):
    steps = [
        len(steps_of(model, Parallel(threshold, temperature=0))) for threshold in (0.2, 0.5, 1.0)
    ]
    assert steps[0] < steps[1] < steps[2] == 32


def test_the_last_block_may_be_shorter(model):
    steps = steps_of(model, Parallel(0.5, block_length=12, temperature=0), tokens=20)
    assert steps[-1].revealed.all()
    assert not (steps[-1].tokens == MASK).any()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_watermark_of_no_strength_changes_nothing(model, small_key, temperature):
    sampler = Parallel(0.5, block_length=16, temperature=temperature)
    unmarked = written(model, sampler)
    none = Watermark(small_key, delta=0.0, tokenizer=model.tokenizer)
    strong = Watermark(small_key, delta=5.0, tokenizer=model.tokenizer)
    assert torch.equal(written(model, sampler, none), unmarked)
    assert not torch.equal(written(model, sampler, strong), unmarked)


def test_the_watermark_does_not_decide_which_tokens_come_first(model, small_key):
    strong = Watermark(small_key, "predictive-bidirectional", 50.0, tokenizer=model.tokenizer)
    unmarked, marked = (
        steps_of(model, Parallel(0.2, temperature=0), mark)[0] for mark in (None, strong)
    )
    assert torch.equal(unmarked.revealed, marked.revealed)
    assert not torch.equal(unmarked.tokens, marked.tokens)


def test_suppress_end_never_writes_an_end(small_tokenizer):
    model = scripted_model(small_tokenizer, [{END: 0.95}] * 32)
    assert (written(model, Parallel(temperature=0), prompts=["w1"]) == END).any()
    assert not (
        written(model, Parallel(suppress_end=True, temperature=0), prompts=["w1"]) == END
    ).any()
