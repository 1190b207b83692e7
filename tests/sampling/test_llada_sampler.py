"""LLaDA's sampler equals the official algorithm, written here row by row; its options work."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import (
    END,
    MASK,
    PROMPTS,
    batch_generator,
    forbid,
    order_of,
    padded,
    scripted_model,
    steps_of,
    written,
)

from dllmark.errors import DllmarkError
from dllmark.marking.strategies import STRATEGIES
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import HashedGreenList
from dllmark.sampling.choice import highest_apart
from dllmark.sampling.confidence import confidence
from dllmark.sampling.schedule import even_target
from dllmark.sampling.settings import Llada, default_llada


def nucleus(logits, top_p):
    """The smallest sets of likeliest tokens that reach top_p (the official sampler keeps all)."""
    kept = torch.ones_like(logits, dtype=torch.bool)
    for row, p in zip(kept.flatten(0, 1), logits.softmax(-1).flatten(0, 1), strict=True):
        reached = 0.0
        for token in p.argsort(descending=True):
            row[token] = reached <= top_p
            reached += p[token].item()
    return kept


def naive_llada(model, x, attended, start, sampler, random):
    """The official sampler, with its random numbers drawn for the block only."""
    prompt = torch.zeros_like(x, dtype=torch.bool)
    prompt[:, :start] = True
    blocks = (x.shape[1] - start) // sampler.block_length
    steps = sampler.steps // blocks
    for block in range(blocks):
        first = start + block * sampler.block_length
        last = first + sampler.block_length
        each, remainder = divmod(sampler.block_length, steps)
        for step in range(steps):
            logits = model.transformer(x, attended)
            if sampler.cfg_scale > 0:
                unprompted = torch.where(prompt, MASK, x)
                un_logits = model.transformer(unprompted, attended)
                logits = un_logits + (sampler.cfg_scale + 1) * (logits - un_logits)
            logits = forbid(model, logits)[:, first:last]
            noised = logits
            if sampler.temperature > 0:
                u = torch.rand(logits.shape, dtype=torch.float64, generator=random)
                noised = logits.double().exp() / (-u.log()) ** sampler.temperature
                noised = torch.where(
                    nucleus(logits / sampler.temperature, sampler.top_p), noised, 0
                )
            x0 = noised.argmax(-1)
            if sampler.order == "low_confidence":
                x0_p = logits.softmax(-1).gather(-1, x0[..., None])[..., 0]
            elif sampler.order == "random":
                x0_p = torch.rand(x0.shape, generator=random)
            else:
                x0_p = torch.linspace(1, 0, x0.shape[1]).repeat(len(x0), 1)
            for b in range(len(x)):
                confidence = torch.where(x[b, first:last] == MASK, x0_p[b], -torch.inf)
                for j in confidence.topk(each + (step < remainder)).indices:
                    x[b, first + j] = x0[b, j]
    return x


@pytest.mark.parametrize("order", ["low_confidence", "random", "left_to_right"])
@pytest.mark.parametrize(
    "options",
    [
        {"steps": 32},
        {"steps": 12, "block_length": 8},
        {"steps": 4, "temperature": 1.0, "block_length": 32},
        {"steps": 16, "block_length": 16, "temperature": 0.7},
        {"steps": 8, "block_length": 16, "temperature": 0.8, "top_p": 0.6},
        {"steps": 8, "block_length": 16, "cfg_scale": 1.5},
        {"steps": 8, "block_length": 8, "cfg_scale": 0.5, "temperature": 0.3},
    ],
    ids=str,
)
def test_it_writes_what_the_official_sampler_writes(model, order, options):
    sampler = Llada(order=order, **{"temperature": 0, **options})
    expected = naive_llada(model, *padded(model, PROMPTS, 32), sampler, batch_generator(3))
    assert torch.equal(written(model, sampler, seed=3), expected)


def test_an_even_split_gives_the_remainder_to_the_first_steps():
    targets = [0] + [even_target(32, step, 12) for step in range(12)]
    assert [b - a for a, b in pairwise(targets)] == [3] * 8 + [2] * 4


@pytest.mark.parametrize("strategy", ["predictive-bidirectional", "guided-bidirectional"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("order", ["low_confidence", "random"])
def test_a_watermark_of_no_strength_changes_nothing(model, small_key, order, temperature, strategy):
    sampler = Llada(steps=16, block_length=16, temperature=temperature, order=order)
    unmarked = written(model, sampler)
    none = Watermark(small_key, strategy, delta=0.0, tokenizer=model.tokenizer)
    strong = Watermark(small_key, strategy, delta=5.0, tokenizer=model.tokenizer)
    assert torch.equal(written(model, sampler, none), unmarked)
    assert not torch.equal(written(model, sampler, strong), unmarked)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_only_a_watermark_that_guides_decides_which_tokens_come_first(
    model, small_key, temperature
):
    sampler = Llada(steps=4, temperature=temperature)
    for strategy in [name for name in STRATEGIES if "-bidirectional" in name]:
        strong = Watermark(small_key, strategy, delta=50.0, tokenizer=model.tokenizer)
        unmarked, marked = steps_of(model, sampler)[0], steps_of(model, sampler, strong)[0]
        same = torch.equal(unmarked.revealed, marked.revealed)
        assert same is (strategy != "guided-bidirectional")
        assert not torch.equal(unmarked.tokens, marked.tokens)


@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_an_order_that_does_not_ask_for_certainty_is_not_guided(model, small_key, order):
    sampler = Llada(steps=4, order=order, temperature=0)
    guides = Watermark(small_key, "guided-bidirectional", 50.0, tokenizer=model.tokenizer)
    unmarked, marked = steps_of(model, sampler)[0], steps_of(model, sampler, guides)[0]
    assert torch.equal(unmarked.revealed, marked.revealed)


def test_a_guided_text_begins_with_what_is_green_and_likely(small_tokenizer, small_key):
    """At the first place the likeliest token is red behind the prompt, and another one green."""
    green = HashedGreenList(small_key, small_tokenizer.vocab_size)
    before = small_tokenizer.encode("w1").tolist()[-1]
    row = green.rows(np.array([before]))[0]
    ordinary = np.flatnonzero(small_tokenizer.scored)
    red, good = (ordinary[row[ordinary] == colour][0].item() for colour in (False, True))
    likely = [{red: 0.6, good: 0.3}, {red: 0.55}, {red: 0.5}, {red: 0.45}]
    model = scripted_model(small_tokenizer, likely)
    sampler = Llada(steps=4, block_length=4, temperature=0)
    options = {"prompts": ["w1"], "tokens": 4}
    first = {}
    for strategy in ("expected-bidirectional", "guided-bidirectional"):
        watermark = Watermark(small_key, strategy, 3.0, tokenizer=small_tokenizer)
        first[strategy] = order_of(steps_of(model, sampler, watermark, **options))[0]
    assert first["expected-bidirectional"] == 0  # where the model is most certain of red
    assert first["guided-bidirectional"] != 0  # there it would write what it finds less likely


def naive_passes(model, x, watermark, each):
    """A text of one block, the most certain tokens first; those at odd positions see the others."""
    while (masked := x == MASK).any():
        logits = forbid(model, model.transformer(x))
        certain = logits.log_softmax(-1).amax(-1)
        if watermark.strategy.biases_order:
            for at in masked[0].nonzero()[:, 0].tolist():
                one = watermark.bias(x, ~masked, logits, torch.tensor([[at]]))
                certain[0, at] = logits[0, at].log_softmax(-1)[one[0, 0].argmax()]
        certain = torch.where(masked, certain, -torch.inf)
        chosen = certain[0].topk(each).indices.tolist()
        for parity in (0, 1):
            before = x.clone()
            for at in chosen:
                if at % 2 == parity:
                    one = watermark.bias(before, before != MASK, logits, torch.tensor([[at]]))
                    x[0, at] = one[0, 0].argmax()
    return x


@pytest.mark.parametrize("strategy", ["expected-bidirectional", "guided-bidirectional"])
@pytest.mark.parametrize("each", [1, 4, 8])
def test_tokens_of_one_step_see_their_neighbours_where_the_strategy_has_two_passes(
    model, small_key, each, strategy
):
    watermark = Watermark(small_key, strategy, 4.0, tokenizer=model.tokenizer)
    x, _, _ = padded(model, PROMPTS[:1], 16)
    expected = naive_passes(model, x, watermark, each)
    sampler = Llada(steps=16 // each, block_length=16, temperature=0)
    options = {"prompts": PROMPTS[:1], "tokens": 16}
    assert torch.equal(written(model, sampler, watermark, **options), expected)


def test_one_block_is_finished_before_the_next_begins(model):
    steps = steps_of(model, Llada(steps=8, block_length=8, temperature=0))
    for step in steps:
        done = step.revealed[:, step.start :].reshape(3, 4, 8).sum(-1).tolist()
        assert done == [[8] * ((step.number - 1) // 2) + [4 * (2 - step.number % 2)]
                        + [0] * (3 - (step.number - 1) // 2)] * 3  # fmt: skip


def test_steps_without_a_token_to_reveal_do_not_run_the_model(model, monkeypatch):
    calls, forward = [], model.transformer.forward
    monkeypatch.setattr(model.transformer, "forward", lambda *a: calls.append(1) or forward(*a))
    steps = steps_of(model, Llada(steps=100, block_length=32, temperature=0))
    assert len(calls) == 32
    assert [step.number for step in steps] == list(range(1, 101))


def test_remasked_tokens_are_chosen_anew_and_no_mask_remains(model):
    steps = steps_of(model, Llada(steps=16, block_length=16, remask=0.3, temperature=1.0))
    pairs = list(pairwise(steps))
    assert any((before.revealed & ~after.revealed).any() for before, after in pairs)
    assert any(
        ((before.tokens != after.tokens) & before.revealed & after.revealed).any()
        for before, after in pairs
    )
    assert steps[-1].revealed.all()
    assert not (steps[-1].tokens == MASK).any()
    counts = [int(step.revealed[0, step.start :].sum()) for step in steps]
    assert counts == list(range(2, 33, 2))


def test_end_last_reveals_the_end_after_all_other_tokens(small_tokenizer):
    likely = [{END: 0.9}, {5: 0.4}, {END: 0.8}, {6: 0.5}, {7: 0.3}, {8: 0.6}]
    model = scripted_model(small_tokenizer, likely)

    for end_last, order in ((False, [0, 2, 5, 3, 1, 4]), (True, [5, 3, 1, 4, 0, 2])):
        sampler = Llada(steps=6, block_length=6, end_last=end_last, temperature=0)
        assert order_of(steps_of(model, sampler, prompts=["w1"], tokens=6)) == order


@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_end_last_holds_in_every_order(small_tokenizer, order):
    model = scripted_model(small_tokenizer, [{END: 0.9}] * 4 + [{9: 0.9}] * 4)
    sampler = Llada(steps=2, block_length=8, order=order, end_last=True, temperature=0)
    halfway = steps_of(model, sampler, prompts=["w1"], tokens=8)[0]
    assert halfway.revealed[0, 1:].tolist() == [False] * 4 + [True] * 4


def test_end_last_goes_by_the_token_that_the_noise_draws():
    noise = torch.zeros(1, 2, 4, dtype=torch.float64)
    noise[0, 0, END] = -9.0
    logits = torch.tensor([[[0.0, 1.0, 0.0, 3.0], [0.0, 1.0, 0.0, 2.0]]])
    sampler = Llada(temperature=1.0, end_last=True)
    score = confidence(sampler, logits, logits, noise, (END,), torch.Generator())[0]
    assert score[0] == torch.finfo(torch.float32).min
    torch.testing.assert_close(score[1], logits[0, 1].log_softmax(-1)[3])


def test_tokens_that_are_almost_sure_are_told_apart():
    """Beside a logit of 30, float32 has no room for the logarithm of a sum that is 1 + 8e-7."""
    logits = torch.tensor([[[30.0, 16.0, 0.0], [30.0, 8.0, 0.0], [30.0, 17.0, 0.0]]])
    exact = logits.double().softmax(-1).amax(-1)
    score = confidence(Llada(temperature=0), logits, logits, None, (), torch.Generator())
    assert score.argsort(descending=True).tolist() == exact.argsort(descending=True).tolist()
    torch.testing.assert_close(score.double(), exact.log(), atol=6e-8, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_suppress_end_never_writes_an_end(small_tokenizer, temperature):
    model = scripted_model(small_tokenizer, [{END: 0.9}] * 32)
    sampler = Llada(steps=32, temperature=temperature)
    options = {"prompts": ["w1"], "tokens": 32}
    assert (written(model, sampler, **options) == END).any()
    suppressed = Llada(steps=32, temperature=temperature, suppress_end=True)
    assert not (written(model, suppressed, **options) == END).any()


def test_neither_masks_nor_ids_without_a_token_are_ever_written(small_tokenizer):
    likely = [{MASK: 0.9}] * 16 + [{small_tokenizer.vocab_size: 0.9}] * 16
    model = scripted_model(small_tokenizer, likely)
    tokens = written(model, Llada(steps=32, temperature=1.0), prompts=["w1"])
    assert not ((tokens == MASK) | (tokens >= small_tokenizer.vocab_size)).any()


def naive_apart(score, masked, count):
    """Return the best places one by one, neighbours of those of before only if all are."""
    left, chosen = set(np.flatnonzero(masked)), []
    for _ in range(min(count, len(left))):
        away = {at for at in left if all(abs(at - other) > 1 for other in chosen)}
        chosen.append(max(away or left, key=lambda at: score[at]))
        left.remove(chosen[-1])
    return chosen


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 12))
def test_places_of_one_step_are_kept_apart_as_long_as_there_are_such(seed, width, most):
    random = np.random.default_rng(seed)
    score, masked = random.normal(size=(3, width)), random.random((3, width)) < 0.7
    counts = random.integers(0, most + 1, 3)
    found = highest_apart(*map(torch.tensor, (score, masked, counts)), max(most, 1))
    for row in range(3):
        expected = naive_apart(score[row], masked[row], counts[row])
        assert found[row].tolist() == expected + [-1] * (max(most, 1) - len(expected))


@pytest.mark.parametrize("strict", [{"order": "left_to_right"}, {"end_last": True}])
def test_what_is_kept_apart_keeps_no_strict_order(strict):
    with pytest.raises(DllmarkError, match="leave it out"):
        Llada(**strict, apart=True)
    assert not default_llada("tiny", 8, **strict).apart
