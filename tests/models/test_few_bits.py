"""Weights stored in few bits: what is read is what was stored, in either of two ways."""

import numpy as np
import pytest
import torch
from checkpoints import dream_config, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file, save_file

from dllmark import load_model
from dllmark.errors import ModelError
from dllmark.models import few_bits, packed

TOKENS = torch.arange(20, 50)[None]


@given(arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(1, 5).map(lambda n: 16 * n))))
def test_the_numbers_of_a_byte_are_its_halves_less_eight(stored):
    expected = [[int(half) - 8 for byte in row for half in divmod(int(byte), 16)[::-1]]
                for row in stored]  # fmt: skip
    assert few_bits.steps(torch.from_numpy(stored)).tolist() == expected


@pytest.fixture
def folder(tmp_path):
    """A Dream checkpoint in few bits, and the same numbers written out in `whole/`."""
    generator = torch.Generator().manual_seed(0)
    (tmp_path / "whole").mkdir()
    config = dream_config(hidden_size=64, intermediate_size=96, tie_word_embeddings=True)
    weights = write_checkpoint(tmp_path / "whole", config)
    write_checkpoint(tmp_path, config)
    stored = {}
    for name, weight in weights.items():
        if weight.ndim != 2:
            stored[name] = weight
            continue
        rows, columns = weight.shape
        scale = torch.rand(rows, columns // 32, generator=generator).bfloat16() / 16
        if "embed" in name:
            steps = torch.randint(-128, 128, weight.shape, generator=generator)
            stored[name] = steps.to(torch.int8)
        else:
            steps = torch.randint(-8, 8, weight.shape, generator=generator)
            low, high = steps[:, ::2] + 8, steps[:, 1::2] + 8
            stored[name] = (low + 16 * high).to(torch.uint8)
        stored[f"{name}.scale"] = scale
        weights[name] = steps * scale.float().repeat_interleave(32, 1)
    save_file(stored, tmp_path / "model.safetensors")
    save_file(weights, tmp_path / "whole" / "model.safetensors")
    return tmp_path


@torch.inference_mode()
def test_expanded_weights_are_steps_times_scales(folder):
    model, same = (load_model(str(path), dtype="float32") for path in (folder, folder / "whole"))
    assert torch.equal(model.transformer(TOKENS), same.transformer(TOKENS))


@pytest.mark.skipif(not few_bits.has_kernel(), reason="no 4-bit kernel for this processor")
@torch.inference_mode()
def test_the_kernel_gives_what_expanded_weights_give_but_for_rounding(folder):
    block = load_model(str(folder), device="cpu").transformer.blocks[0]
    exact = load_model(str(folder), dtype="float32").transformer.blocks[0]
    given = torch.randn(3, 7, 64, generator=torch.Generator().manual_seed(1))
    layers = {
        block.gate_up: (exact.gate, exact.up),
        block.attention.qkv: (exact.attention.query, exact.attention.key, exact.attention.value),
        block.attention.out: (exact.attention.out,),
    }
    for layer, parts in layers.items():
        assert isinstance(layer, few_bits.FewBitsLinear)
        found, expected = layer(given), torch.cat([part(given) for part in parts], -1)
        assert found.shape == expected.shape
        assert (found - expected).norm() < 0.02 * expected.norm()


class Expanded(torch.nn.Module):
    """What stands for the kernel on a processor that has none: the same layer, expanded."""

    def __init__(self, stored, scale, bias):
        super().__init__()
        self.weight, self.bias = few_bits.expanded(stored, scale), bias

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("other", [None, "self_attn.k_proj", "mlp.gate_proj"])
@torch.inference_mode()
def test_layers_with_the_same_input_are_one_if_all_are_in_4_bits(folder, monkeypatch, other):
    if other:  # one that is not
        stored = load_file(folder / "model.safetensors")
        for layer in (0, 1):
            name = f"model.layers.{layer}.{other}.weight"
            stored[name] = few_bits.expanded(stored[name], stored.pop(f"{name}.scale"))
        save_file(stored, folder / "model.safetensors")
    expected = load_model(str(folder), device="cpu", dtype="float32").transformer(TOKENS)
    monkeypatch.setattr(packed, "has_kernel", lambda: False)
    monkeypatch.setattr(few_bits, "has_kernel", lambda: True)
    monkeypatch.setattr(few_bits, "FewBitsLinear", Expanded)
    transformer = load_model(str(folder), device="cpu").transformer
    torch.testing.assert_close(transformer(TOKENS), expected)
    block = transformer.blocks[1]
    assert hasattr(block.attention, "qkv") == (other != "self_attn.k_proj")
    assert hasattr(block, "gate_up") == (other != "mlp.gate_proj")
    assert isinstance(block.down, Expanded)


def test_another_dtype_than_auto_expands_the_weights(folder):
    layer = load_model(str(folder), device="cpu", dtype="float32").transformer.blocks[0].gate
    assert isinstance(layer, torch.nn.Linear)


def test_scales_of_another_shape_are_refused(folder):
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight.scale"
    stored[name] = stored[name][:, :1].contiguous()
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"up_proj.weight.scale .* has the shape \(96, 1\)"):
        load_model(str(folder), dtype="float32")


def test_scales_of_ordinary_numbers_are_refused(folder):
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    stored[name] = torch.zeros(96, 64)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"up_proj.weight .* its numbers are torch.float32"):
        load_model(str(folder))


@torch.inference_mode()
def test_a_table_of_tokens_in_4_bits_is_expanded(folder):
    stored = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    stored[name] = torch.full((len(stored[name]), 32), 0x97, dtype=torch.uint8)
    save_file(stored, folder / "model.safetensors")
    embedding = load_model(str(folder), device="cpu").transformer.embedding.weight
    scale = stored[f"{name}.scale"].float()
    assert torch.equal(embedding[:, :2], torch.stack([-scale[:, 0], scale[:, 0]], 1))
