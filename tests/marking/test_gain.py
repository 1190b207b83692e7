"""What candidates gain under a key, and over all keys."""

import pytest
import torch

from dllmark.marking.gain import Block
from dllmark.marking.watermark import Watermark
from dllmark.relation.key import Secret, WatermarkKey

MASK = 2
TEXT = torch.tensor([[7, 9, MASK, MASK, MASK, 11]])
LIKELY = torch.tensor([[[12, 13], [14, 15], [16, 1]]])
P = torch.tensor([[[0.6, 0.3], [0.5, 0.1], [0.9, 0.05]]])
"""Of the three masks the likeliest tokens; 1 is no word."""


def block_of(tokens=TEXT):
    return Block(tokens, tokens != MASK, torch.tensor(2), LIKELY, P)


def gains(number, tokenizer, tokens=TEXT):
    key = WatermarkKey(Secret(number.to_bytes(16, "big")), 0.5, tokenizer.id)
    watermark = Watermark(key, "joint", 4.0, tokenizer=tokenizer)
    return watermark.gains(block_of(tokens), 3, tokenizer.vocab_size)[0]


def test_over_all_keys_a_place_gains_the_less_the_less_is_known_beside_it(small_tokenizer):
    found = torch.stack([gains(number, small_tokenizer) for number in range(500)])
    known = torch.tensor([[1 + 0.6], [0.9 + 0.9], [0.6 + 1]])  # 1 gives no term: 0.9, not 0.95
    expected = (0.5 * 4.0 * (known - 2)).expand(3, 2)
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - expected).abs() <= 4 * error + 1e-5).all()


def test_what_repeats_a_pair_or_is_no_word_gains_the_mean_under_every_key(small_tokenizer):
    again = torch.tensor([[9, 12, 9, MASK, MASK, MASK, 11]])  # 9 12 stands there already
    block = Block(again, again != MASK, torch.tensor(3), LIKELY, P)
    for number in range(8):
        key = WatermarkKey(Secret(number.to_bytes(16, "big")), 0.5, small_tokenizer.id)
        watermark = Watermark(key, "joint", 4.0, tokenizer=small_tokenizer)
        found = watermark.gains(block, 3, small_tokenizer.vocab_size)[0]
        assert found[0, 0].item() == pytest.approx(2.0 * (1.6 - 2))
        assert found[2, 1].item() == pytest.approx(2.0 * (1.6 - 2))


def test_no_pair_is_expected_past_the_end_of_a_text(small_tokenizer):
    ends = TEXT[:, :-1]
    whole, ended = (torch.stack([gains(number, small_tokenizer, tokens) for number in range(8)])
                    for tokens in (TEXT, ends))  # fmt: skip
    assert torch.equal(whole[:, :2], ended[:, :2])
    known_right = (whole - ended)[:, 2, 0]
    assert set(known_right.tolist()) <= {2.0, -2.0}
