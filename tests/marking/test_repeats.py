"""What would repeat a pair of the text is found, and gets the mean bias under every key."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_bias import DELTA, VOCABULARY, naive_logits, naive_repeats

import dllmark.marking.prediction
from dllmark.marking.repeats import repeats
from dllmark.marking.watermark import Watermark
from dllmark.relation.key import Secret, WatermarkKey

MASK = 2

pytestmark = pytest.mark.usefixtures("one_core")

texts = st.lists(st.sampled_from([1, MASK, MASK, 5, 6, 7]), min_size=1, max_size=9)
"""Few words, so that pairs come again; an end of text; and masks."""


def fresh(number, tokenizer):
    key = WatermarkKey(Secret(number.to_bytes(16, "big")), 0.25, tokenizer.id)
    return key, Watermark(key, "fresh-bidirectional", DELTA, top_k=3, tokenizer=tokenizer)


@settings(max_examples=60)
@given(
    text=texts,
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    at_once=st.integers(1, 40),
)
def test_the_bias_is_that_of_a_slow_loop(small_tokenizer, text, seed, dtype, at_once):
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([text, text[::-1]])
    logits = torch.rand(2, len(text), VOCABULARY, generator=rng).argsort(-1).to(dtype) / 8
    covered = torch.stack([torch.randperm(len(text), generator=rng) for _ in range(2)])
    positions = covered.masked_fill(torch.rand(covered.shape, generator=rng) < 0.2, -1)
    rows = logits[torch.arange(2)[:, None], covered]
    key, watermark = fresh(seed, small_tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dllmark.marking.prediction, "LOGITS_AT_ONCE", at_once)
        biased = watermark.bias(tokens, tokens != MASK, rows, positions, covered)
    assert biased.dtype == dtype
    for b, k in (positions >= 0).nonzero().tolist():
        state = tokens[b], tokens[b] != MASK, logits[b], int(positions[b, k])
        expected = naive_logits(key, "fresh-bidirectional", 3, *state)
        torch.testing.assert_close(
            biased[b, k], torch.tensor(expected).to(dtype), rtol=1e-6, atol=1e-6
        )


@given(text=texts)
def test_candidates_repeat_what_a_slow_loop_says(text):
    tokens = torch.tensor([[*text, 7]])  # a pair needs two
    length = tokens.shape[1]
    every = torch.arange(VOCABULARY).expand(1, length, -1)
    left, right = (repeats(tokens, tokens != MASK, torch.arange(length), every, side)
                   for side in (-1, +1))  # fmt: skip
    for at in (tokens[0] == MASK).nonzero()[:, 0].tolist():
        found = (left | right)[0, at].nonzero()[:, 0].tolist()
        assert set(found) == naive_repeats(tokens[0], tokens[0] != MASK, at)


@pytest.mark.parametrize(("text", "again", "mean"), [
    ([5, 6, 9, 5, MASK, MASK], 6, 2),  # after the same token
    ([5, 6, 9, 5, MASK], 6, 1),        # no side past the end
    ([8, MASK, 6, 9, 5, 6], 5, 2),     # before the same token
    ([5, 6, 6, 5, MASK, 5, 6], 6, 2),  # a green pair on both sides is worth no more
])  # fmt: skip
def test_a_repeated_pair_gets_the_mean_under_every_key(small_tokenizer, text, again, mean):
    tokens = torch.tensor([text])
    at, logits = text.index(MASK), torch.zeros(1, len(text), VOCABULARY)
    others = set()
    for number in range(16):
        _, watermark = fresh(number, small_tokenizer)
        [[biased]] = watermark.bias(tokens, tokens != MASK, logits, torch.tensor([[at]]))
        assert biased[again] == 0.25 * DELTA * mean
        others.add(biased[11].item())
    assert len(others) > 1  # a new pair has its colour


def test_an_end_of_text_beside_another_repeats_nothing(small_tokenizer):
    """Else texts would end earlier than without a key, where an engine writes their end first."""
    tokens = torch.tensor([[5, 6, MASK, 1, 1]])
    _, watermark = fresh(0, small_tokenizer)
    at, logits = torch.tensor([[2]]), torch.zeros(1, 5, VOCABULARY)
    [[biased]] = watermark.bias(tokens, tokens != MASK, logits, at)
    assert biased[1] == 0.25 * DELTA  # as every special token, from the word to its left alone


def test_what_stands_at_a_place_is_no_repetition_of_itself(small_tokenizer):
    """Else an engine that edits would be led away from every green token it wrote."""
    tokens = torch.tensor([[5, 6, 7]])
    logits, at = torch.zeros(1, 3, VOCABULARY), torch.tensor([[1]])
    for number in range(4):
        _, watermark = fresh(number, small_tokenizer)
        biased = watermark.bias(tokens, tokens > 0, logits, at)
        watermark.strategy = replace(watermark.strategy, fresh=False)
        assert torch.equal(biased, watermark.bias(tokens, tokens > 0, logits, at))
