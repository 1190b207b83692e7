"""Reordered weights: the same product, from the same numbers."""

import pytest
import torch
from checkpoints import dream_config, write_checkpoint

from dllmark import load_model
from dllmark.models import packed

pytestmark = pytest.mark.skipif(not packed.has_kernel(), reason="no such kernel here")

TOKENS = torch.arange(20, 50)[None]


@pytest.fixture
def folder(tmp_path):
    """A Dream checkpoint, whose queries, keys and values have a bias, and whose head is tied."""
    write_checkpoint(tmp_path, dream_config(hidden_size=64, tie_word_embeddings=True))
    return str(tmp_path)


@torch.inference_mode()
def test_a_model_on_the_cpu_gives_what_ordinary_layers_give_but_for_rounding(folder):
    fast, plain = load_model(folder, device="cpu"), load_model(folder, dtype="float32")
    assert isinstance(fast.transformer.head, packed.PackedLinear)
    assert isinstance(plain.transformer.head, torch.nn.Linear)
    expected = plain.transformer(TOKENS)
    torch.testing.assert_close(fast.transformer(TOKENS), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(7, 64), (3, 5, 64), (0, 64), (1, 1, 64)])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_a_layer_takes_any_number_of_rows(shape, bias):
    linear = torch.nn.Linear(64, 48, bias=bias)
    layer = packed.PackedLinear(linear.weight, linear.bias)
    given = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(given), linear(given))
    turned = given.transpose(0, -2)  # not one row after the other in memory
    torch.testing.assert_close(layer(turned), linear(turned))
