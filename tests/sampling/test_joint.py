"""`joint` weighs the sampler's own choice of position and token, and writes what it says."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from naive_joint import NaiveAdaptive, NaiveJoint
from naive_marks import BLOCK, PROMPT, TOKENS, Naive
from tiny import MASK, steps_of

from dllmark.errors import InputError
from dllmark.marking.strategies import STRATEGIES
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import BitMatrix, HashedGreenList
from dllmark.sampling.confidence import draw, draw_noise, warp_logits
from dllmark.sampling.joint import log_chances, redrawn
from dllmark.sampling.settings import Dream, Llada, Parallel
from dllmark.sampling.texts import generate, generate_both

SAMPLER = Llada(TOKENS, BLOCK, 0.8, apart=True)


@pytest.mark.parametrize("temperature", [0, 0.1, 0.3, 0.8, 1.2])
@pytest.mark.parametrize("per_step", [1, 2, 4])
def test_joint_writes_what_its_formulas_say(endless, small_key, temperature, per_step):
    mark = Watermark(small_key, "joint", tokenizer=endless.tokenizer)
    sampler = replace(SAMPLER, steps=TOKENS // per_step, temperature=temperature)
    naive = NaiveJoint(endless, small_key, temperature, mark.delta)
    plain = Naive(endless, small_key, temperature, 0.0)
    [*_, last] = steps_of(endless, sampler, mark, [PROMPT], TOKENS, seed=4)
    expected = naive.write(per_step, 4)
    assert last.tokens[0, last.start :].tolist() == expected
    assert expected != plain.write(per_step, 4)  # else the mark would not have been tested


@pytest.mark.parametrize(("temperature", "per_step"), [(0, 1), (0.8, 1), (0.8, 2), (0.8, 4)])
def test_adaptive_joint_writes_what_its_formulas_say(endless, small_key, temperature, per_step):
    mark = Watermark(small_key, "adaptive-joint", tokenizer=endless.tokenizer)
    sampler = replace(SAMPLER, steps=TOKENS // per_step, temperature=temperature)
    adaptive, constant = (
        kind(endless, small_key, temperature, mark.delta).write(per_step, 4)
        for kind in (NaiveAdaptive, NaiveJoint)
    )
    [*_, last] = steps_of(endless, sampler, mark, [PROMPT], TOKENS, seed=4)
    assert last.tokens[0, last.start :].tolist() == adaptive
    assert adaptive != constant  # else the text would have needed all of the mark


@pytest.mark.parametrize("strategy", ["joint", "cooled-joint"])
@pytest.mark.parametrize("per_step", [1, 2])
def test_from_left_to_right_it_keeps_that_order(endless, small_key, strategy, per_step):
    mark = Watermark(small_key, strategy, tokenizer=endless.tokenizer)
    sampler = Llada(TOKENS // per_step, BLOCK, 0.8, order="left_to_right")
    steps = steps_of(endless, sampler, mark, [PROMPT], TOKENS, seed=4)
    written = [step.revealed[0, step.start :].tolist() for step in steps]
    counts = range(per_step, TOKENS + 1, per_step)
    assert written == [[True] * n + [False] * (TOKENS - n) for n in counts]


@pytest.mark.parametrize("cache", ["none", "block"])
@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize(
    ("steps", "apart", "order"),
    [
        (TOKENS, True, "low_confidence"),
        (TOKENS // 4, True, "low_confidence"),
        (5, False, "low_confidence"),
        (TOKENS, False, "left_to_right"),
        (TOKENS // 4, False, "left_to_right"),
    ],
)
def test_no_strength_changes_nothing(endless, small_key, cache, temperature, steps, apart, order):
    sampler = Llada(steps, BLOCK, temperature, order=order, cache=cache, apart=apart)
    marked, plain = (
        generate(endless, [PROMPT, "w9"], mark, sampler, tokens=TOKENS, chat=False)
        for mark in (Watermark(small_key, "joint", 0.0, tokenizer=endless.tokenizer), None)
    )
    assert [text.ids for text in marked] == [text.ids for text in plain]


def test_beside_each_other_both_texts_are_those_of_one_by_one(endless, small_key):
    mark = Watermark(small_key, "joint", tokenizer=endless.tokenizer)
    marked, unmarked = generate_both(endless, PROMPT, mark, SAMPLER, tokens=TOKENS, chat=False)
    alone = [
        generate(endless, [PROMPT], one, SAMPLER, tokens=TOKENS, chat=False)[0].ids
        for one in (mark, None)
    ]
    assert [marked.ids, unmarked.ids] == alone
    assert marked.ids != unmarked.ids


@pytest.mark.parametrize("strategy", [*STRATEGIES, None])
def test_a_step_writes_neighbours_only_where_there_is_no_other_place(endless, small_key, strategy):
    mark = strategy and Watermark(small_key, strategy, tokenizer=endless.tokenizer)
    sampler = replace(SAMPLER, steps=TOKENS // 2)
    steps = steps_of(endless, sampler, mark, [PROMPT], TOKENS, seed=4)
    masks = [set(range(steps[0].start, steps[0].tokens.shape[1]))]
    masks += [{at for at in masks[0] if not canvas.revealed[0, at]} for canvas in steps]
    for before, after in pairwise(masks):
        one, other = sorted(before - after)
        first = steps[0].start + (one - steps[0].start) // BLOCK * BLOCK
        block = before & set(range(first, first + BLOCK))
        if other - one == 1:
            assert any(all(abs(at - place) < 2 for at in block) for place in (one, other))


def test_beside_each_other_several_tokens_a_step_are_those_of_one_by_one(endless, small_key):
    mark = Watermark(small_key, "joint", tokenizer=endless.tokenizer)
    sampler = replace(SAMPLER, steps=TOKENS // 4)
    marked, unmarked = generate_both(endless, PROMPT, mark, sampler, tokens=TOKENS, chat=False)
    alone = [
        generate(endless, [PROMPT], one, sampler, tokens=TOKENS, chat=False)[0].ids
        for one in (mark, None)
    ]
    assert [marked.ids, unmarked.ids] == alone


def test_a_bit_matrix_marks_as_the_key_does(endless, small_key, tmp_path):
    vocab_size = endless.config.vocab_size
    hashed = HashedGreenList(small_key, vocab_size)
    matrix = BitMatrix.build(hashed, tmp_path / "m", progress=False)
    by_key, by_matrix = (
        generate(endless, [PROMPT], Watermark(source, "joint", tokenizer=endless.tokenizer),
                 SAMPLER, tokens=TOKENS, chat=False)
        for source in (small_key, matrix)
    )  # fmt: skip
    assert by_key[0].ids == by_matrix[0].ids


@pytest.mark.parametrize(
    "sampler",
    [
        Dream(8, "entropy"),
        Llada(8, order="random"),
        Llada(8, end_last=True),
        Parallel(),
    ],
)
def test_it_says_which_samplers_it_is_for(endless, small_key, sampler):
    mark = Watermark(small_key, "joint", tokenizer=endless.tokenizer)
    with pytest.raises(InputError, match="left_to_right order and without end_last"):
        generate(endless, [PROMPT], mark, sampler, tokens=8, chat=False)


def test_what_top_p_leaves_out_is_not_weighed(endless, small_key):
    mark = Watermark(small_key, "joint", 30.0, tokenizer=endless.tokenizer)
    only = replace(SAMPLER, top_p=1e-6)  # the likeliest token of each position
    marked, plain = (
        generate(endless, [PROMPT], one, sampler, tokens=1, chat=False)[0].ids
        for one, sampler in ((mark, replace(only, steps=1, block_length=1)),
                             (None, Llada(1, 1, temperature=0)))
    )  # fmt: skip
    assert marked == plain


@pytest.mark.parametrize("temperature", [0, 1e-4, 0.8])
@pytest.mark.parametrize(("block_length", "steps"), [(3, 6), (BLOCK, 4)])
def test_every_place_is_written_where_few_tokens_can_be(
    endless, small_key, temperature, block_length, steps
):
    mark = Watermark(small_key, "joint", 30.0, tokenizer=endless.tokenizer)
    sampler = Llada(steps, block_length, temperature, top_p=1e-6, apart=True)
    [*_, last] = steps_of(endless, sampler, mark, [PROMPT, "w9"], TOKENS)
    assert last.revealed.all()
    assert not (last.tokens == MASK).any()


def test_it_is_no_bias(endless, small_key):
    mark = Watermark(small_key, "joint", tokenizer=endless.tokenizer)
    tokens = torch.tensor([[7, 8]])
    with pytest.raises(InputError, match="joint is no bias"):
        mark.bias(tokens, tokens == 7, torch.zeros(1, 2, 40), torch.tensor([[1]]))


def test_the_chances_are_those_of_the_sampler():
    sampler = Llada(8, temperature=0.8)
    logits = 1.5 * torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0))
    masked = torch.tensor([[True, True, False, True]])
    tokens = logits.topk(6).indices
    sure = logits.log_softmax(-1).gather(2, tokens)
    chance = warp_logits(sampler, logits).log_softmax(-1).gather(2, tokens)
    chances = log_chances(sure, chance, masked, 6).exp()
    expected = torch.zeros(4, 6).scatter(1, tokens[0], chances[0])
    many = logits.expand(200_000, -1, -1)
    drawn = draw(
        warp_logits(sampler, many),
        draw_noise(sampler, many, torch.Generator().manual_seed(1)),
    )
    sure = many.log_softmax(-1).gather(2, drawn[..., None])[..., 0]
    first = sure.masked_fill(~masked, -torch.inf).argmax(1)
    number = first * 6 + drawn.gather(1, first[:, None])[:, 0]
    found = torch.bincount(number, minlength=24).view(4, 6) / len(many)
    assert torch.allclose(found, expected, atol=0.003)


def test_redrawn_choices_have_the_new_chances_and_stay_where_they_can():
    random = torch.Generator().manual_seed(0)
    chances = torch.tensor([0.5, 0.3, 0.2]).log()
    weights = chances + torch.tensor([0.0, 1.0, -1.0])
    count = 200_000
    own = torch.multinomial(chances.exp(), count, replacement=True, generator=random)
    drawn = redrawn(chances.expand(count, -1), weights.expand(count, -1), own, random)
    after = weights.softmax(0)
    assert torch.allclose(torch.bincount(drawn) / count, after, atol=0.005)
    moved = (drawn != own).float().mean().item()
    assert abs(moved - (after - chances.exp()).clamp(min=0).sum().item()) < 0.005
