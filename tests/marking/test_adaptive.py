"""A text is marked as strongly as it needs: until it has the green pairs that it is to have."""

from statistics import mean

import pytest
import torch
from naive_marks import SPECIAL, own_coin
from tiny import MASK

from dllmark.detection.detector import Detector
from dllmark.marking.adaptive import AIM, MARGIN
from dllmark.marking.gain import Block
from dllmark.marking.watermark import Watermark
from dllmark.sampling.settings import Dream, Llada
from dllmark.sampling.texts import generate


def in_prompt(tokens, prompt):
    """Where a text's prompt is."""
    return (torch.arange(tokens.shape[1]) < len(prompt)).expand_as(tokens)


def share_of_joint(key, tokenizer, ids, prompt=(), times=1, mask=MASK):
    """How much of its bias `adaptive-joint` has behind a prompt and some tokens."""
    delta = times * 5.4
    tokens = torch.tensor([[*prompt, *ids, *[mask] * 4]])
    likely = torch.arange(SPECIAL, SPECIAL + 8).expand(1, 4, 8)
    first, p = torch.tensor(len(prompt) + len(ids)), torch.full((1, 4, 8), 0.1)
    block = Block(tokens, tokens != mask, first, likely, p, in_prompt(tokens, prompt))
    adaptive, constant = (
        Watermark(key, name, delta, tokenizer=tokenizer).gains(block, 4, tokenizer.vocab_size)
        for name in ("adaptive-joint", "joint")
    )
    return (adaptive / constant)[0, 0, 0].item()


def share_of_bidirectional(key, tokenizer, ids, prompt=(), times=1, mask=MASK):
    """How much of its bias `adaptive-bidirectional` has at all tokens of the next position."""
    tokens = torch.tensor([[*prompt, *ids, mask]])
    logits = torch.randn(1, tokens.shape[1], tokenizer.vocab_size)
    logits[..., SPECIAL] = -torch.inf  # what must not come
    plain, at = logits[:, -1:], torch.tensor([[tokens.shape[1] - 1]])
    adaptive, constant = (
        Watermark(key, name, 3.0 * times, tokenizer=tokenizer).bias(
            tokens, tokens != mask, logits, at, prompt_mask=in_prompt(tokens, prompt)
        )
        for name in ("adaptive-bidirectional", "fresh-bidirectional")
    )
    assert torch.equal(adaptive.isinf(), plain.isinf())
    ours, whole = ((one - plain)[constant != plain] for one in (adaptive, constant))
    share = (ours / whole)[whole.isfinite() & (whole > 0.1)]
    assert torch.allclose(share, share[0], atol=1e-3)
    return share[0].item()


@pytest.fixture(params=[share_of_joint, share_of_bidirectional])
def share_of_bias(request):
    """What measures the share of its bias that an adaptive strategy has."""
    return request.param


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


def test_the_bias_ends_where_a_text_is_far_enough_ahead(share_of_bias, small_key, small_tokenizer):
    for count in (0, 4, 12, 20, 40):
        ahead = count * (1 - 0.5 - AIM)
        marked = chain(small_key, small_tokenizer, True, count)
        expected = max(0, 1 - ahead / MARGIN)
        share = share_of_bias(small_key, small_tokenizer, marked)
        assert share == pytest.approx(expected, abs=1e-3)
    assert expected == 0


def test_a_text_that_is_behind_gets_all_of_it(share_of_bias, small_key, small_tokenizer):
    red = chain(small_key, small_tokenizer, False, 20)
    assert share_of_bias(small_key, small_tokenizer, red) == pytest.approx(1)


def test_a_text_that_loops_gets_all_of_it(share_of_bias, small_key, small_tokenizer):
    green = chain(small_key, small_tokenizer, True, 2)
    assert share_of_bias(small_key, small_tokenizer, green * 20) == pytest.approx(1)


def test_green_pairs_of_the_prompt_do_not_count(share_of_bias, small_key, small_tokenizer):
    green = chain(small_key, small_tokenizer, True, 40)
    assert share_of_bias(small_key, small_tokenizer, [], prompt=green) == pytest.approx(1)


def test_a_larger_delta_aims_for_more(share_of_bias, small_key, small_tokenizer):
    green = chain(small_key, small_tokenizer, True, 16)
    doubled = (0.5, 1, 2)
    shares = [share_of_bias(small_key, small_tokenizer, green, times=times) for times in doubled]
    expected = [1 - 16 * (0.5 - AIM * times) / MARGIN for times in doubled]
    assert shares == pytest.approx(expected, abs=1e-3)


def test_a_mask_may_be_no_token_of_the_model(share_of_bias, small_key, small_tokenizer):
    green = chain(small_key, small_tokenizer, True, 12)
    outside = small_tokenizer.vocab_size + 7
    share, other = (
        share_of_bias(small_key, small_tokenizer, green, mask=mask) for mask in (outside, MASK)
    )
    assert share == pytest.approx(other, abs=1e-3)


@pytest.mark.parametrize(
    ("adaptive", "constant", "delta", "sampler"),
    [
        ("adaptive-joint", "joint", 5.4, Llada(96, 16)),
        ("cooled-joint", "joint", 10.8, Llada(96, 16)),
        ("adaptive-bidirectional", "fresh-bidirectional", 3.0, Llada(96, 16, order="random")),
        ("adaptive-bidirectional", "fresh-bidirectional", 3.0, Dream(96)),
    ],
)
def test_written_texts_are_a_few_green_pairs_ahead_of_their_aim(
    endless, small_key, monkeypatch, adaptive, constant, delta, sampler
):
    monkeypatch.setattr("dllmark.marking.adaptive.AIM", 0.02)  # what a small model can reach

    def ahead(strategy):
        mark = Watermark(small_key, strategy, delta, tokenizer=endless.tokenizer)
        prompts = ["w4 w5", "w9 w8", "w7"]
        texts = generate(endless, prompts, mark, sampler, tokens=96, chat=False)
        found = Detector(small_key, endless.tokenizer).detect_many([text.ids for text in texts])
        return [one.green - 0.5 * one.pairs - 0.02 * 95 for one in found]

    needed, whole = ahead(adaptive), ahead(constant)
    assert min(needed) > 0
    assert mean(needed) < MARGIN < mean(whole)
