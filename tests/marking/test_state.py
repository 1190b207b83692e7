"""What `Watermark.bias` is given: what cannot be is refused by one of our errors, on every path."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from dllmark.errors import DllmarkError, InputError, TokenizerError
from dllmark.marking.state import State
from dllmark.marking.strategies import BIASES
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import BitMatrix, HashedGreenList

if importlib.util.find_spec("triton"):
    import kernel_cases  # noqa: F401 - Triton must be imported for its interpreter

VOCABULARY, MASK = 37, 2
KERNELS = pytest.mark.skipif(
    not importlib.util.find_spec("triton") or torch.cuda.is_available(),
    reason="needs Triton's interpreter",
)


@pytest.fixture(params=["torch", "matrix", pytest.param("kernels", marks=KERNELS)])
def path(request, monkeypatch):
    """The three ways to a bias on this machine."""
    if request.param == "kernels":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    return request.param


@pytest.fixture(params=BIASES)
def watermark(request, path, small_key, small_tokenizer, tmp_path):
    """A watermark of each strategy, by each path."""
    source = small_key
    if path == "matrix":
        hashed = HashedGreenList(small_key, VOCABULARY)
        source = BitMatrix.build(hashed, tmp_path / "matrix", progress=False)
    return Watermark(source, request.param, tokenizer=small_tokenizer)


def state(**others):
    """A sequence with both neighbours of its second position known, and of its fourth none."""
    tensors = {
        "tokens": torch.tensor([[7, MASK, 9, MASK, MASK]]),
        "revealed": torch.tensor([[True, False, True, False, False]]),
        "logits": torch.randn(1, 5, VOCABULARY, generator=torch.Generator().manual_seed(0)),
        "positions": torch.tensor([[1, 4]]),
    }
    return tensors | others


SHAPES = {
    "tokens of one sequence": {"tokens": torch.zeros(5, dtype=torch.int64)},
    "tokens of two sequences": {"tokens": torch.zeros(2, 5, dtype=torch.int64)},
    "tokens that are no integers": {"tokens": torch.zeros(1, 5)},
    "tokens that are truth values": {"tokens": torch.zeros(1, 5, dtype=torch.bool)},
    "no tokens": {
        "tokens": torch.zeros(1, 0, dtype=torch.int64),
        "revealed": torch.zeros(1, 0, dtype=torch.bool),
    },
    "revealed of fewer tokens": {"revealed": torch.ones(1, 4, dtype=torch.bool)},
    "revealed as integers": {"revealed": torch.ones(1, 5, dtype=torch.int64)},
    "logits of one sequence": {"logits": torch.zeros(5, VOCABULARY)},
    "logits of fewer positions": {"logits": torch.zeros(1, 4, VOCABULARY)},
    "logits that are integers": {"logits": torch.zeros(1, 5, VOCABULARY, dtype=torch.int64)},
    "logits that are complex": {"logits": torch.zeros(1, 5, VOCABULARY, dtype=torch.complex64)},
    "positions of one sequence": {"positions": torch.tensor([1])},
    "positions that are no integers": {"positions": torch.tensor([[1.0]])},
    "too few logit positions": {"logit_positions": torch.tensor([[0, 1]])},
    "logit positions that are no integers": {"logit_positions": torch.zeros(1, 5)},
    "a prompt mask of fewer tokens": {"prompt_mask": torch.ones(1, 4, dtype=torch.bool)},
    "a prompt mask of integers": {"prompt_mask": torch.ones(1, 5, dtype=torch.int64)},
    "a prompt mask of two sequences": {"prompt_mask": torch.ones(2, 5, dtype=torch.bool)},
    "another device": {"positions": torch.zeros(1, 1, dtype=torch.int64, device="meta")},
}
POSITIONS = {
    "past the end": {"positions": torch.tensor([[5]])},
    "before the start": {"positions": torch.tensor([[-2]])},
    "without logits": {"logit_positions": torch.tensor([[0, 2, 3, 4, -1]])},
    "past the end, with logits": {
        "positions": torch.tensor([[5]]),
        "logit_positions": torch.tensor([[1, 2, 3, 4, 5]]),
    },
}


def test_what_does_not_fit_together_is_refused(watermark):
    for name, wrong in SHAPES.items():
        with pytest.raises(InputError) as refused:
            watermark.bias(**state(**wrong))
        assert any(word in str(refused.value) for word in wrong), name  # it says which tensor


def test_a_position_that_is_none_is_refused(watermark):
    for wrong in POSITIONS.values():
        with pytest.raises(InputError, match="not among those of the logits"):
            watermark.bias(**state(**wrong))


@pytest.mark.parametrize("id_", [-100, -1, VOCABULARY, 2**40])
def test_a_revealed_token_outside_the_vocabulary_is_refused(watermark, id_):
    with pytest.raises(TokenizerError, match="outside the vocabulary: ids are below 37"):
        watermark.bias(**state(tokens=torch.tensor([[id_, MASK, 9, MASK, MASK]])))


def test_a_mask_may_have_any_id(watermark):
    """Engines mask with ids past the head, and pad with -100; what is not revealed is not read."""
    tokens, expected = state()["tokens"], watermark.bias(**state())
    for id_ in (-100, VOCABULARY, 2**40):
        other = torch.where(tokens == MASK, id_, tokens)
        assert torch.equal(watermark.bias(**state(tokens=other)), expected), id_


def test_reachable_tokens_of_another_shape_are_refused(watermark):
    for wrong in (torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2, VOCABULARY)):
        with pytest.raises(InputError, match="reachable gave"):
            watermark.bias(**state(), reachable=lambda gain, wrong=wrong: wrong)


def test_on_a_gpu_values_are_checked_without_waiting(monkeypatch):
    """Which this machine may not have: what it would be told to check, is told here."""
    told = []
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch, "_assert_async", lambda *check: told.append(check))
    good = State(**state())
    good.check_values()
    assert all(holds for holds, _ in told)
    replace(good, tokens=torch.full((1, 5), -100)).check_values()
    holds, message = told[-1]
    assert not holds and "outside the vocabulary" in message


def test_a_refusal_is_one_of_our_errors():
    assert issubclass(InputError, DllmarkError) and issubclass(TokenizerError, DllmarkError)
