"""The transformer's kernels compute what torch does, in Triton's interpreter or on a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import rms_norm, silu

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not made for this system", allow_module_level=True)

from fused_cases import (
    DEVICE,
    DTYPES,
    HEADS,
    WIDTHS,
    fused,
    heads_to_turn,
    logits_of,
    make_transformer,
    near,
    normed_exactly,
    some,
    some_tokens,
    turned_one_by_one,
)
from triton.runtime import interpreter

from dllmark.models import transformer
from dllmark.models.transformer import fuses, turn, unfused

if DEVICE == "cpu" and not isinstance(fused._norm, interpreter.InterpretedFunction):
    raise RuntimeError("triton was imported too early for its interpreter: pytest tests src")

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch):
    """Let the kernels run on the CPU, where a model never chooses them."""
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def kernels_everywhere(monkeypatch):
    """Let the transformer use its kernels on the CPU too; return which were used."""
    used = []

    def note(name, kernel):
        def noted(*arguments):
            used.append(name)
            return kernel(*arguments)

        return noted

    for name in ("rotate", "swiglu", "norm"):
        monkeypatch.setattr(fused, name, note(name, getattr(fused, name)))
    monkeypatch.setattr(transformer, "fuses", lambda *_: True)
    return used


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
def test_rotation(heads, kv_heads, width, dtype):
    query, key, at, angles = heads_to_turn(heads, kv_heads, width, dtype)
    turned = fused.rotate(query, key, *angles)
    for before, after in zip((query, key), turned, strict=True):
        assert after.dtype == dtype
        near(after, turn(before, angles))
        near(after, turned_one_by_one(before, at))


def test_rotation_leaves_what_it_reads():
    query, key, _, angles = heads_to_turn(2, 2, 64, torch.float32)
    copies = query.clone(), key.clone()
    fused.rotate(query, key, *angles)
    assert query.equal(copies[0]) and key.equal(copies[1])


def test_rotation_of_heads_that_lie_elsewhere_in_memory():
    query, key, _, angles = heads_to_turn(3, 1, 64, torch.float32)
    apart = query.transpose(1, 2).contiguous().transpose(1, 2)
    near(fused.rotate(apart, key, *angles)[0], turn(query, angles))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_gate(width, dtype):
    gate, up = some(2, 3, width, dtype=dtype), some(2, 3, width, dtype=dtype, seed=1)
    gated = fused.swiglu(gate, up)
    assert gated.dtype == dtype
    near(gated, silu(gate.double()) * up.double())


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_a_gate_that_is_far_open_or_shut():
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4, torch.inf]], device=DEVICE)
    near(fused.swiglu(gate, torch.ones_like(gate)), silu(gate))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norm(width, dtype):
    x, weight = some(2, 3, width, dtype=dtype), some(width, dtype=dtype, seed=1)
    same, normed = fused.norm(x, None, weight, 0.01)
    assert same.equal(x) and normed.dtype == dtype
    near(normed, rms_norm(x, (width,), weight, 0.01))
    near(normed, normed_exactly(x, weight, 0.01))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norm_of_a_sum(width, dtype):
    x, added = some(2, 3, width, dtype=dtype), some(2, 3, width, dtype=dtype, seed=1)
    weight, before = some(width, dtype=dtype, seed=2), x.clone()
    total, normed = fused.norm(x, added, weight, 1e-5)
    assert x.equal(before) and total.dtype == normed.dtype == dtype
    near(total, x + added)
    near(normed, normed_exactly(total, weight, 1e-5))
    assert fused.norm(total, None, weight, 1e-5)[1].equal(normed)  # of the sum as it is stored


@torch.inference_mode()
@pytest.mark.parametrize("shifted", [False, True])
def test_a_model_with_the_kernels_gives_the_logits_of_torch(kernels_everywhere, shifted):
    model, tokens = make_transformer(torch.float32, shifted=shifted), some_tokens(2, 7)
    logits = logits_of(model, tokens)
    assert sorted(kernels_everywhere) == ["norm"] * 10 + ["rotate"] * 4 + ["swiglu"] * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformer, "fuses", lambda *_: False)
        plain = logits_of(model, tokens)
    assert len(kernels_everywhere) == 18
    torch.testing.assert_close(logits, plain, atol=1e-4, rtol=1e-4)


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


def on_gpu(dtype=torch.bfloat16, *, wants_gradient=False):
    return torch.zeros(2, dtype=dtype).as_subclass(OnGpu).requires_grad_(wants_gradient)


@torch.no_grad()
def test_kernels_are_for_one_number_format_on_a_gpu():
    for dtype in DTYPES:
        assert fuses(on_gpu(dtype), on_gpu(dtype))
    assert not fuses(torch.zeros(2))
    assert not fuses(on_gpu(), torch.zeros(2, dtype=torch.bfloat16))
    assert not fuses(on_gpu(), on_gpu(torch.float32))  # as autocast has it
    assert not fuses(on_gpu(torch.float64))


def test_kernels_are_not_for_training():
    assert not fuses(on_gpu(wants_gradient=True))


@torch.no_grad()
def test_kernels_are_for_a_triton_that_compiles_them(monkeypatch):
    monkeypatch.setattr(transformer, "has_triton", lambda: False)
    assert not fuses(on_gpu())


@torch.no_grad()
def test_unfused_ends_with_its_block():
    with pytest.raises(ZeroDivisionError), unfused():
        assert not fuses(on_gpu())
        raise ZeroDivisionError
    assert fuses(on_gpu())


@torch.no_grad()
def test_torch_compile_gets_torch(monkeypatch):
    """It would stop at a kernel's launch, and makes kernels of its own."""
    monkeypatch.setattr(transformer, "has_triton", None)
    model, tokens = make_transformer(torch.float32), some_tokens(1, 3)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU to run on")
def test_they_compile_for_a_gpu_once_and_read_many_numbers_at_a_time(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    script = Path(__file__).parents[1] / "support" / "compile_fused.py"
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["_norm", "_rotate", "_swiglu"]


def test_nobody_needs_triton():
    code = (
        "import sys; from dllmark.models.transformer import Config, Transformer, torch\n"
        "config = Config(50, 16, layers=1, heads=2, kv_heads=1, mlp_width=32, max_length=8)\n"
        "with torch.inference_mode():\n"
        "    print(len(Transformer(config)(torch.zeros(1, 5, dtype=torch.int64))[0]))\n"
        "print('triton' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "False"]
