"""The keyed hash is SipHash-2-4, the same bits in numpy and torch, and its colours look random."""

import traceback

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from siphash24 import siphash24

from dllmark.relation.key import Secret, TokenizerId, WatermarkKey
from dllmark.relation.prf import Secrets, below_threshold, pair_message, siphash, siphash_each

# SipHash-2-4 of the messages 00, 00 01, 00 01 02, … under the key 00 01 … 0f, as published with
# the algorithm (Aumasson and Bernstein, reference implementation, vectors_sip64).
PUBLISHED = {
    0: 0x726FDB47DD0E0E31, 1: 0x74F839C593DC67FD, 2: 0x0D6C8009D9A94F5A, 3: 0x85676696D7FB7E2D,
    4: 0xCF2794E0277187B7, 5: 0x18765564CD99A68D, 6: 0xCBC9466E58FEE3CE, 7: 0xAB0200F58B01D137,
    8: 0x93F5F5799A932462, 9: 0x9E0082DF0BA9E4B0, 10: 0x7A5DBBC594DDB9F3, 11: 0xF4B32F46226BADA7,
    12: 0x751E8FBC860EE5FB, 13: 0x14EA5627C0843D90, 14: 0xF723CA908E7AF2EE,
    15: 0xA129CA6149BE45E5,
}  # fmt: skip

words = st.integers(0, 2**64 - 1)
tokens = st.integers(0, 2**32 - 1)


def make_key(secret: bytes, gamma: float = 0.5) -> WatermarkKey:
    return WatermarkKey(Secret(secret), gamma, TokenizerId("test", "none"))


def test_it_gives_the_published_value_of_an_eight_byte_message():
    message = np.array([int.from_bytes(bytes(range(8)), "little")], dtype=np.uint64)
    assert siphash(make_key(bytes(range(16))), message)[0] == PUBLISHED[8]


@pytest.mark.parametrize("length", PUBLISHED)
def test_the_package_it_is_compared_with_gives_the_published_values(length):
    digest = siphash24(bytes(range(length)), key=bytes(range(16))).digest()
    assert int.from_bytes(digest, "little") == PUBLISHED[length]


@given(secret=st.binary(min_size=16, max_size=16), messages=st.lists(words, min_size=1))
def test_it_agrees_with_an_independent_siphash(secret, messages):
    ours = siphash(make_key(secret), np.array(messages, dtype=np.uint64))
    theirs = [siphash24(m.to_bytes(8, "little"), key=secret).digest() for m in messages]
    assert ours.tolist() == [int.from_bytes(digest, "little") for digest in theirs]


@given(secret=st.binary(min_size=16, max_size=16), messages=st.lists(words, min_size=1))
def test_torch_gives_the_same_bits_as_numpy(secret, messages):
    array = np.array(messages, dtype=np.uint64)
    tensor = torch.from_numpy(array.view(np.int64).copy())
    hashed = siphash(make_key(secret), tensor).numpy().view(np.uint64)
    assert hashed.tolist() == siphash(make_key(secret), array).tolist()


@given(
    secrets=st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=5),
    messages=st.lists(words, min_size=1, max_size=5),
)
def test_the_hash_under_many_keys_at_once_is_that_under_each(secrets, messages):
    keys = [make_key(secret) for secret in secrets]
    array = np.array(messages, dtype=np.uint64)
    each = [[int.from_bytes(siphash24(m.to_bytes(8, "little"), key=secret).digest(), "little")
             for m in messages] for secret in secrets]  # fmt: skip
    assert siphash_each(Secrets.of(keys), array).tolist() == each
    tensor = torch.from_numpy(array.view(np.int64).copy())
    on_torch = Secrets.of(keys).placed(lambda words: torch.from_numpy(words))
    assert siphash_each(on_torch, tensor).numpy().view(np.uint64).tolist() == each


def test_many_secrets_do_not_print():
    secrets = Secrets.of([make_key(bytes(range(16)))] * 3)
    assert repr(secrets) == str(secrets) == "<3 secrets>"
    with pytest.raises(TypeError) as caught:
        siphash_each(secrets, np.array([0.5]))
    shown = "".join(traceback.TracebackException.from_exception(
        caught.value, capture_locals=True).format())  # fmt: skip
    assert "506097522914230528" not in shown  # the first word, 07 06 … 00


@given(left=tokens, right=tokens)
def test_a_pair_is_hashed_as_left_then_right_in_one_word(left, right):
    message = pair_message(np.array([left], dtype=np.uint64), np.array([right], dtype=np.uint64))
    assert int(message[0]) == left << 32 | right


@given(hashes=st.lists(words, min_size=1), gamma=st.floats(1e-9, 1 - 1e-9))
def test_green_is_an_exact_comparison_of_integers(hashes, gamma):
    numerator, denominator = gamma.as_integer_ratio()
    limit = (numerator << 64) // denominator
    expected = [value < limit for value in hashes]
    array = np.array(hashes, dtype=np.uint64)
    tensor = torch.from_numpy(array.view(np.int64).copy())
    assert below_threshold(array, gamma).tolist() == expected
    assert below_threshold(tensor, gamma).tolist() == expected


@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.75])
def test_the_hash_at_the_threshold_is_red_and_the_one_below_green(gamma):
    numerator, denominator = gamma.as_integer_ratio()
    limit = (numerator << 64) // denominator
    assert below_threshold(np.array([limit - 1, limit], dtype=np.uint64), gamma).tolist() == [
        True,
        False,
    ]


def test_hashes_of_neighbouring_pairs_are_uniform():
    left, right = np.meshgrid(np.arange(512, dtype=np.uint64), np.arange(512, dtype=np.uint64))
    hashed = siphash(make_key(b"a fixed test key"), pair_message(left, right).reshape(-1))
    for byte in range(8):
        counts = np.bincount(((hashed >> np.uint64(8 * byte)) & np.uint64(255)).astype(int))
        assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_rows_and_columns_of_colours_are_independent_of_each_other(gamma, axis):
    left, right = np.meshgrid(
        np.arange(1000, dtype=np.uint64), np.arange(1000, dtype=np.uint64), indexing="ij"
    )
    hashed = siphash(make_key(b"a fixed test key"), pair_message(left, right))
    green = below_threshold(hashed, gamma)
    # Sums of independent colours have a binomial spread, and neighbouring lines do not correlate.
    sums = green.sum(axis)
    spread = ((sums - 1000 * gamma) ** 2).sum() / (1000 * gamma * (1 - gamma))
    assert 1e-4 < stats.chi2.cdf(spread, 1000) < 1 - 1e-4
    first, second = (green[:-1], green[1:]) if axis else (green[:, :-1], green[:, 1:])
    both = int((first & second).sum())
    assert stats.binomtest(both, first.size, gamma**2).pvalue > 1e-4


def test_another_key_gives_independent_colours():
    message = np.arange(100_000, dtype=np.uint64)
    one = below_threshold(siphash(make_key(b"a fixed test key"), message), 0.5)
    other = below_threshold(siphash(make_key(b"a fixed test kez"), message), 0.5)
    assert stats.binomtest(int((one == other).sum()), len(message), 0.5).pvalue > 1e-4
