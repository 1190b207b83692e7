"""The files of training/lora.py, of a model of a few thousand weights."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import lora
from dllmark.models.transformer import Config, Transformer

MASK = 3


def adapted(rank, layers=1):
    """Return a small model with adapters of some rank."""
    model = Transformer(Config(vocab_size=24, width=32, layers=layers, heads=2, kv_heads=2,
                               mlp_width=32, max_length=64))  # fmt: skip
    lora.add(model, rank, MASK)
    return model


@pytest.fixture
def saved(tmp_path):
    """The adapters of a model, after they learned something."""
    model = adapted(rank=4)
    with torch.no_grad():
        for part in lora.learned(model).values():
            part += torch.randn_like(part)
    lora.save(model, tmp_path / "adapter.safetensors")
    return model, tmp_path / "adapter.safetensors"


def refusal(path, rank=4, layers=1):
    """Return what is said when a file is read as adapters."""
    with pytest.raises(SystemExit) as refused:
        lora.load(adapted(rank, layers), path)
    message = str(refused.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_adapters_come_back_from_their_file_as_8_bits_hold_them(saved):
    model, path = saved
    again = adapted(rank=4)
    lora.load(again, path)
    found = lora.learned(again)
    for name, part in lora.learned(model).items():
        step = part.abs().amax(-1, keepdim=True) / 127
        assert ((found[name] - part).abs() <= step).all()


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_file_that_is_cut_short_is_refused(saved, length):
    _, path = saved
    path.write_bytes(path.read_bytes()[:length])
    assert "copied or downloaded again if it is cut short" in refusal(path)


def test_a_file_that_holds_something_else_is_refused(saved):
    _, path = saved
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n" * 9)
    assert "cannot read the adapter" in refusal(path)


def test_a_file_that_is_missing_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "nothing.safetensors", tmp_path):
        assert "give the adapter.safetensors of a run" in refusal(path)


@pytest.mark.parametrize(("rank", "layers"), [(2, 1), (8, 1), (4, 2)])
def test_adapters_of_another_rank_or_model_are_refused(saved, rank, layers):
    _, path = saved
    assert "of another model or rank: give its own --rank" in refusal(path, rank, layers)


@pytest.mark.parametrize(("change", "message"), [
    (lambda scale: scale[:-1], "of another model or rank"),
    (lambda scale: torch.full_like(scale, torch.nan), "damaged, a scale is no number"),
])  # fmt: skip
def test_adapters_with_scales_that_cannot_be_are_refused(saved, change, message):
    _, path = saved
    parts = load_file(path)
    name = next(name for name in parts if name.endswith("up.scale"))
    save_file({**parts, name: change(parts[name])}, path)
    assert message in refusal(path)
