"""Each other scheme writes what a slow loop over its paper's formulas writes."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from naive_joint import (
    NaiveAdaptive,
    NaiveCooledExpecting,
    NaiveExpecting,
    NaiveOrder,
    NaiveOrdered,
)
from naive_marks import BLOCK, NAIVE, PROMPT, SPECIAL, TOKENS, Naive, NaiveGloaguen, coin
from tiny import MASK, steps_of
from toys import llada_generate

from dllmark.detection.detector import Detector
from dllmark.errors import InputError
from dllmark.experiments.rivals.coins import side_lists
from dllmark.experiments.rivals.marks import Mark, TwoSides
from dllmark.experiments.rivals.schemes import SCHEMES, find_scheme
from dllmark.integrations.torch import watermarked
from dllmark.marking.gain import Block
from dllmark.marking.state import State
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.sampling.settings import Dream, Llada
from dllmark.sampling.texts import generate


@pytest.mark.parametrize(
    ("name", "temperature", "per_step"),
    [
        (name, temperature, per_step)
        for name in NAIVE
        for temperature, per_step in ((0.0, 1), (0.8, 1), (0.8, 2))
        if temperature or not SCHEMES[name].noise
    ],
)
def test_a_scheme_writes_what_its_formulas_say(endless, name, temperature, per_step):
    model = endless
    scheme = SCHEMES[name]
    tokenizer = model.tokenizer
    key = WatermarkKey(Secret(b"a key of 16 byte"), scheme.gamma, tokenizer.id)
    mark = scheme.mark(key, tokenizer, scheme.delta, temperature)
    order = scheme.order or "low_confidence"
    sampler = Llada(TOKENS // per_step, BLOCK, temperature, order=order)
    naive = NAIVE[name](model, key, temperature, scheme.delta)
    plain = Naive(model, key, temperature, 0.0)
    seed = 7
    [*_, last] = steps_of(model, sampler, mark, [PROMPT], TOKENS, seed=seed)
    expected = naive.write(per_step, seed)
    assert last.tokens[0, last.start :].tolist() == expected
    assert expected != plain.write(per_step, seed)  # else the mark would not have been tested


def test_an_expectation_is_over_all_likely_neighbours(endless, small_key):
    vocab_size = endless.tokenizer.vocab_size
    logits = torch.randn(1, 3, vocab_size, generator=torch.Generator().manual_seed(0))
    logits[..., MASK] = -torch.inf
    mark = SCHEMES["gloaguen"].mark(small_key, endless.tokenizer, 4.0, 0.5)
    tokens, masked = torch.full((1, 3), MASK), torch.zeros(1, 3, dtype=torch.bool)
    biased = mark.bias(tokens, masked, logits, torch.tensor([[1]]))[0, 0]
    naive = NaiveGloaguen(endless, small_key, 0.5, 4.0).bias([MASK] * 3, logits[0].tolist(), 1)
    words = slice(SPECIAL, None)
    found = (biased - logits[0, 1])[words]
    torch.testing.assert_close(found, torch.tensor(naive)[words], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["sta-1", "unbiased", "unbiased-fresh"])
def test_over_all_keys_an_unbiased_scheme_leaves_every_token_as_likely(endless, name):
    tokenizer = endless.tokenizer
    logits = torch.randn(1, 3, tokenizer.vocab_size, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[7, MASK, MASK]])  # a known neighbour and an expected one
    state = State(tokens, tokens != MASK, 2 * logits, torch.tensor([[1]]))
    found = []
    for number in range(400):
        key = WatermarkKey(Secret(number.to_bytes(16, "big")), 0.5, tokenizer.id)
        biased = SCHEMES[name].mark(key, tokenizer, 0.0, 0.8).bias(state)
        found.append((biased[0, 0] / 0.8).softmax(0))
    mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / math.sqrt(len(found))
    p = (state.logits[0, 1] / 0.8).softmax(0)
    assert (error < 0.08 * p).all() and (error.max() > 0.001)
    assert ((mean - p).abs() < 4 * error).all()


@pytest.mark.parametrize("name", ["sta-1", "unbiased", "unbiased-fresh"])
def test_what_is_certain_stays_so_whatever_its_colour(endless, name):
    logits = torch.full((1, 2, endless.tokenizer.vocab_size), -100.0)
    logits[..., 9] = 100.0
    tokens = torch.tensor([[7, MASK]])
    state = State(tokens, tokens != MASK, logits, torch.tensor([[1]]))
    for number in range(8):
        key = WatermarkKey(Secret(bytes([number] * 16)), 0.5, endless.tokenizer.id)
        biased = SCHEMES[name].mark(key, endless.tokenizer, 0.0, 0.8).bias(state)
        assert torch.isfinite(biased).all() and biased[0, 0].argmax() == 9


@pytest.mark.parametrize(("temperature", "per_step"), [(0.0, 1), (0.8, 1), (0.8, 2)])
def test_the_order_of_joint_is_what_its_formula_says(endless, small_key, temperature, per_step):
    scheme = SCHEMES["joint-order"]
    mark = scheme.mark(small_key, endless.tokenizer, scheme.delta, temperature)
    sampler = Llada(TOKENS // per_step, BLOCK, temperature, apart=True)
    [*_, last] = steps_of(endless, sampler, mark, [PROMPT], TOKENS, seed=4)
    expected = NaiveOrder(endless, small_key, temperature, scheme.delta).write(per_step, 4)
    assert last.tokens[0, last.start :].tolist() == expected
    assert expected != Naive(endless, small_key, temperature, 0.0).write(per_step, 4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_who_keeps_the_order_has_it_where_the_text_needs_no_mark(endless, small_key, temperature):
    scheme = SCHEMES["adaptive-joint-ordered"]
    mark = scheme.mark(small_key, endless.tokenizer, 8.0, temperature)
    [*_, last] = steps_of(
        endless, Llada(TOKENS, BLOCK, temperature), mark, [PROMPT], TOKENS, seed=5
    )
    expected, plain = (
        kind(endless, small_key, temperature, 8.0).write(1, 5)
        for kind in (NaiveOrdered, NaiveAdaptive)
    )
    assert last.tokens[0, last.start :].tolist() == expected != plain


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("name", "kind", "delta"),
    [("adaptive-joint", NaiveExpecting, 16.0), ("cooled-joint", NaiveCooledExpecting, 24.0)],
)
def test_an_aim_above_what_a_detector_expects_is_what_its_formula_says(
    endless, small_key, temperature, name, kind, delta
):
    mark = SCHEMES[f"{name}-expecting"].mark(small_key, endless.tokenizer, delta, temperature)
    naive = kind(endless, small_key, temperature, delta)
    naive.above = [abs(math.sin(token)) for token in range(len(mark.excess))]
    mark.excess = torch.tensor(naive.above)
    sampler = Llada(TOKENS, BLOCK, temperature)
    [*_, last] = steps_of(endless, sampler, mark, [PROMPT], TOKENS, seed=5)
    expected = naive.write(1, 5)
    assert last.tokens[0, last.start :].tolist() == expected
    naive.above = [0.0] * len(naive.above)
    assert expected != naive.write(1, 5)


def test_that_aim_expects_of_a_text_what_its_detector_does(tokenizer):
    text = "One of the texts that nobody marked, in the words that people use most of the time."
    ids = tokenizer.encode(text)
    for number in range(4):
        key = WatermarkKey(Secret(bytes([number] * 16)), 0.5, tokenizer.id)
        mark = SCHEMES["adaptive-joint-expecting"].mark(key, tokenizer, 5.4, 0.8)
        tokens = torch.from_numpy(ids)[None]
        there = torch.ones_like(tokens, dtype=torch.bool)
        block = Block(tokens, there, torch.tensor(0), torch.zeros(0), torch.zeros(0))
        above = mark.above_gamma(block, torch.from_numpy(tokenizer.scored))
        [share] = Detector(key, tokenizer).expected_shares(ids, np.array([len(ids)]))
        assert above.item() == pytest.approx(share - 0.5)


def test_the_order_of_joint_says_nothing_about_a_key(endless):
    keys = [WatermarkKey(Secret(bytes([n] * 16)), 0.5, endless.tokenizer.id) for n in (1, 2)]
    one, other = (
        generate(endless, [PROMPT], SCHEMES["joint-order"].mark(key, endless.tokenizer, 3.6, 0.8),
                 Llada(TOKENS, BLOCK, 0.8), tokens=TOKENS, chat=False)[0].ids
        for key in keys
    )  # fmt: skip
    assert one == other


def test_every_other_scheme_has_a_naive_transcription():
    aims = {"adaptive-joint-expecting", "cooled-joint-expecting"}
    of_joint = {"joint-order", "adaptive-joint-ordered", "cooled-joint-left-to-right", *aims}
    assert {*NAIVE, *of_joint} == {name for name, scheme in SCHEMES.items() if not scheme.ours}


@pytest.mark.parametrize("name", ["dgmark-look-ahead", "lr-dwm", "gumbel"])
def test_a_text_does_not_depend_on_its_company(endless, name, small_key):
    model = endless
    mark = SCHEMES[name].mark(small_key, model.tokenizer, 2.0, 0.8)
    sampler = Llada(TOKENS, BLOCK, 0.0 if name != "gumbel" else 0.8)
    prompts = [PROMPT, "w7 w8 w9"]
    together = steps_of(model, sampler, mark, prompts, TOKENS)[-1].tokens
    for row, prompt in enumerate(prompts):
        [alone] = steps_of(model, sampler, mark, [prompt], TOKENS)[-1].tokens
        assert torch.equal(together[row], alone)


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        *((name, Llada(50, 20, order="random")) for name in NAIVE if not SCHEMES[name].order),
        *(
            (name, Dream(50, "entropy"))
            for name in ("unigram", "gloaguen", "lr-dwm", "gumbel", "dgmark", "engine-adaptive")
        ),
    ],
)
def test_a_scheme_finds_its_own_texts_and_no_other_keys(endless, name, sampler):
    scheme, tokenizer = SCHEMES[name], endless.tokenizer
    own, other = (WatermarkKey(Secret(secret), scheme.gamma, tokenizer.id)
                  for secret in (b"a key of 16 byte", b"another 16 bytes"))  # fmt: skip
    mark = scheme.mark(own, tokenizer, 3 * scheme.delta, sampler.temperature)
    prompts = ["w4 w5", "w9 w8", "w20 w3", "w7 w30"]
    texts = [np.array(text.ids) for text in
             generate(endless, prompts, mark, sampler, tokens=100, chat=False)]  # fmt: skip
    for score in scheme.scores.values():
        p_own, p_other = (
            np.median([found.p_value for found in score(key, tokenizer)(texts)])
            for key in (own, other)
        )
        assert p_own < 0.05 < p_other


def test_the_lists_of_both_sides_are_the_same_on_tensors(small_key):
    lists, here = TwoSides(*side_lists(small_key, 35)), torch.tensor([4, 20])
    for row, token in enumerate(here.tolist()):
        after = [coin(small_key, "lr-dwm left", token, v) for v in range(35)]
        before = [coin(small_key, "lr-dwm right", v, token) for v in range(35)]
        assert lists.rows(here)[row].tolist() == lists.rows(here.numpy())[row].tolist() == after
        assert lists.columns(here)[row].tolist() == before
        assert lists.columns(here.numpy())[row].tolist() == before


@pytest.mark.parametrize("name", [name for name in NAIVE if SCHEMES[name].noise])
def test_what_needs_noise_says_so_where_there_is_none(small_key, small_tokenizer, name):
    with pytest.raises(InputError, match=f"{name} needs .* at a temperature above 0"):
        SCHEMES[name].mark(small_key, small_tokenizer, 0.0, 0.0)


class Looking(Mark):
    """Looks one step ahead from every place, and changes nothing."""

    def prefer(self, choice):
        for place in range(choice.score.shape[1]):
            at = torch.full((len(choice.score),), place)
            choice.look(at, choice.candidates[:, place])
        return choice.score


@pytest.mark.parametrize("cache", ["none", "block", "prefix"])
def test_looking_ahead_leaves_nothing_behind(endless, small_key, cache):
    sampler = Llada(16, 8, temperature=0.8, cache=cache)
    mark = Looking(small_key, endless.tokenizer)
    marked, plain = (
        generate(endless, [PROMPT, "w9"], mark, sampler, tokens=TOKENS, chat=False)
        for mark in (mark, None)
    )
    assert [text.ids for text in marked] == [text.ids for text in plain]


def test_an_unknown_scheme_is_told_the_known_ones():
    with pytest.raises(InputError, match="no scheme 'nosuch': choose one of kgw, predictive"):
        find_scheme("nosuch")


class Shown(torch.nn.Module):
    """A model as an engine has it: tokens in, the logits of all of them out."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, SimpleNamespace(mask_token_id=MASK, model_type="LLaDA")

    def forward(self, tokens):
        logits = self.model.transformer(tokens, None, None).float()
        logits[..., MASK] = -torch.inf
        logits[..., self.model.tokenizer.vocab_size :] = -torch.inf
        return SimpleNamespace(logits=logits)


@pytest.mark.parametrize("per_step", [1, 2])
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("engine-predictive", "predictive-bidirectional"),
        ("engine-expected", "expected-bidirectional"),
        ("engine-fresh", "fresh-bidirectional"),
        ("engine-adaptive", "adaptive-bidirectional"),
    ],
)
def test_what_is_called_an_engine_writes_what_an_adapter_makes_one_write(
    endless, name, strategy, per_step
):
    """LLaDA's own loop, written out again, with the adapter that its users have."""
    scheme, tokenizer, tokens = find_scheme(name), endless.tokenizer, 32
    key = WatermarkKey(Secret(b"a key of 16 byte"), scheme.gamma, tokenizer.id)
    mark = scheme.mark(key, tokenizer, scheme.delta, 0.0)
    sampler = Llada(tokens // per_step, 16, 0.0)
    [*_, last] = steps_of(endless, sampler, mark, [PROMPT], tokens)
    shown = Shown(endless)
    prompt = last.tokens[:, : last.start]
    with watermarked(shown, key, strategy, scheme.delta, tokenizer=tokenizer):
        text = llada_generate(shown, prompt, tokens // per_step, tokens, block_length=16)
    assert text.tolist() == last.tokens.tolist()
