"""A text is marked as strongly as it needs: until it has the green pairs that it is to have."""

import pytest
import torch
from naive_marks import SPECIAL, own_coin
from tiny import MASK

from dllmark.detection.detector import Detector
from dllmark.marking.adaptive import AIM, MARGIN
from dllmark.marking.gain import Block
from dllmark.marking.watermark import Watermark
from dllmark.sampling.settings import Llada
from dllmark.sampling.texts import generate


def share_of_bias(key, tokenizer, ids, prompt=(), delta=5.4, mask=MASK):
    """How much of its bias `adaptive-joint` has behind a prompt and some tokens."""
    tokens = torch.tensor([[*prompt, *ids, *[mask] * 4]])
    likely = torch.arange(SPECIAL, SPECIAL + 8).expand(1, 4, 8)
    first, p = torch.tensor(len(prompt) + len(ids)), torch.full((1, 4, 8), 0.1)
    block = Block(tokens, tokens != mask, first, likely, p, len(prompt))
    adaptive, constant = (
        Watermark(key, name, delta, tokenizer=tokenizer).gains(block, 4, tokenizer.vocab_size)
        for name in ("adaptive-joint", "joint")
    )
    return (adaptive / constant)[0, 0, 0].item()


def chain(key, tokenizer, colour, count):
    """Tokens with so many pairs of one colour, none of them twice."""
    words = range(SPECIAL, tokenizer.vocab_size)
    ids, pairs = [SPECIAL], set()
    for _ in range(count):
        fresh = (word for word in words if (ids[-1], word) not in pairs)
        word = next(word for word in fresh if own_coin(key, ids[-1], word) == colour)
        pairs.add((ids[-1], word))
        ids.append(word)
    return ids


def test_the_bias_ends_where_a_text_is_far_enough_ahead(small_key, small_tokenizer):
    for count in (0, 4, 12, 20, 40):
        ahead = count * (1 - 0.5 - AIM * 5.4)
        marked = chain(small_key, small_tokenizer, True, count)
        expected = max(0, 1 - ahead / MARGIN)
        assert share_of_bias(small_key, small_tokenizer, marked) == pytest.approx(expected)
    assert expected == 0


def test_a_text_that_is_behind_gets_all_of_it(small_key, small_tokenizer):
    red = chain(small_key, small_tokenizer, False, 20)
    assert share_of_bias(small_key, small_tokenizer, red) == 1


def test_a_text_that_loops_gets_all_of_it(small_key, small_tokenizer):
    green = chain(small_key, small_tokenizer, True, 2)
    assert share_of_bias(small_key, small_tokenizer, green * 20) == 1


def test_green_pairs_of_the_prompt_do_not_count(small_key, small_tokenizer):
    green = chain(small_key, small_tokenizer, True, 40)
    assert share_of_bias(small_key, small_tokenizer, [], prompt=green) == 1


def test_a_larger_delta_aims_for_more(small_key, small_tokenizer):
    green = chain(small_key, small_tokenizer, True, 16)
    shares = [share_of_bias(small_key, small_tokenizer, green, delta=d) for d in (2.7, 5.4, 10.8)]
    assert shares == pytest.approx([1 - 16 * (0.5 - AIM * d) / MARGIN for d in (2.7, 5.4, 10.8)])


def test_a_mask_may_be_no_token_of_the_model(small_key, small_tokenizer):
    green = chain(small_key, small_tokenizer, True, 12)
    outside = small_tokenizer.vocab_size + 7
    assert share_of_bias(small_key, small_tokenizer, green, mask=outside) == share_of_bias(
        small_key, small_tokenizer, green
    )


def test_written_texts_are_a_few_green_pairs_ahead_of_their_aim(endless, small_key, monkeypatch):
    monkeypatch.setattr("dllmark.marking.adaptive.AIM", 0.02 / 5.4)  # what a small model can reach

    def ahead(strategy):
        mark = Watermark(small_key, strategy, 5.4, tokenizer=endless.tokenizer)
        prompts, sampler = ["w4 w5", "w9 w8", "w7"], Llada(96, 16)
        texts = generate(endless, prompts, mark, sampler, tokens=96, chat=False)
        found = Detector(small_key, endless.tokenizer).detect_many([text.ids for text in texts])
        return [one.green - 0.5 * one.pairs - 0.02 * 95 for one in found]

    assert all(0 < one < MARGIN for one in ahead("adaptive-joint"))
    assert all(one > MARGIN for one in ahead("joint"))
