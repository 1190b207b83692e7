"""Tables of what follows what, against plain counting."""

from collections import Counter

import numpy as np
import pytest

from dllmark.attacks.ngrams import NGrams
from dllmark.errors import InputError

TEXTS = [np.random.default_rng(seed).integers(0, 6, 30) for seed in range(4)]


def counted(order):
    found = {}
    for text in TEXTS:
        tokens = text.tolist()
        for at in range(order, len(tokens)):
            found.setdefault(tuple(tokens[at - order : at]), Counter())[tokens[at]] += 1
    return found


@pytest.mark.parametrize("order", [1, 2])
def test_chances_are_how_often_a_token_followed_within_a_text(order):
    table = NGrams(TEXTS, vocab_size=10, order=order)
    for context, times in counted(order).items():
        number = int("".join(map(str, context)))  # ten tokens: a context is a decimal number
        tokens, log_chances = table.followers(number)
        expected = {token: n / times.total() for token, n in times.items()}
        assert dict(zip(tokens.tolist(), np.exp(log_chances), strict=True)) == pytest.approx(
            expected
        )
        again = table.log_chance(np.full(len(tokens), number), tokens)
        assert again.tolist() == log_chances.tolist()
    assert table.log_chance(np.array([0]), np.array([9])).tolist() == [-np.inf]
    assert len(table.followers(99)[0]) == 0


@pytest.mark.parametrize("order", [1, 2])
def test_what_is_written_follows_the_texts(order):
    texts, log_chances = NGrams(TEXTS, 10, order).write(50, 12, np.random.default_rng(0))
    times = counted(order)
    for text, chances in zip(texts.tolist(), log_chances, strict=True):
        for at in range(order, len(text)):
            behind = times[tuple(text[at - order : at])]
            assert np.exp(chances[at]) == pytest.approx(behind[text[at]] / behind.total())


def test_tokens_come_as_often_as_they_followed():
    table = NGrams([np.array([1, 2, 1, 2, 1, 2, 1, 3, 1])], 10)
    texts, _ = table.write(2000, 2, np.random.default_rng(0))
    behind = texts[texts[:, 0] == 1, 1]
    assert abs(np.mean(behind == 2) - 0.75) < 0.05


def test_a_lean_shifts_the_odds_by_its_nats():
    table = NGrams([np.array([1, 2, 1, 3, 1])], 10)
    texts, _ = table.write(
        4000, 2, np.random.default_rng(0), lambda written, tokens: 1.0 * (tokens == 2), 200
    )
    behind = texts[texts[:, 0] == 1, 1]
    odds = np.e / (1 + np.e)
    assert abs(np.mean(behind == 2) - odds) < 0.04


def test_a_dead_end_goes_on_elsewhere():
    texts, _ = NGrams([np.array([1, 2, 3])], 10).write(1, 20, np.random.default_rng(0))
    assert set(texts[0].tolist()) <= {1, 2, 3}


@pytest.mark.parametrize("texts", [[], [np.array([5])]])
def test_a_table_needs_a_text_of_two_tokens(texts):
    with pytest.raises(InputError, match="no text of more than 1 tokens"):
        NGrams(texts, 10)
