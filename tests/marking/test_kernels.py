"""The kernels give the torch path's bits, in Triton's interpreter or on a GPU, and hide the key."""

import importlib.util
import os
import subprocess
import sys
import traceback
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from siphash24 import siphash24

import dllmark.marking.watermark
from dllmark.marking.state import State
from dllmark.marking.strategies import BIASES, ENGINE_DEFAULT
from dllmark.relation.key import Secret, TokenizerId, WatermarkKey

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not made for this system", allow_module_level=True)

from kernel_cases import (
    BY_PREDICTION,
    DEVICE,
    DTYPES,
    STATES,
    TOKENS,
    VOCABULARY,
    borders,
    graph_follows_its_inputs,
    hash_by_kernel,
    kernels,
    make_watermark,
    same_bits,
    some_positions,
    tl,
    to,
)
from triton.runtime import interpreter

if DEVICE == "cpu" and not isinstance(kernels._add_bias, interpreter.InterpretedFunction):
    raise RuntimeError("triton was imported too early for its interpreter: pytest tests src")

pytestmark = [
    pytest.mark.usefixtures("one_core"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),  # inf - inf
]


@pytest.fixture(autouse=True)
def _untraced():
    """Let no covered lines be counted here: that more than doubles the interpreter's time."""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)


@pytest.fixture(autouse=True)
def _rounding(monkeypatch):
    """Let the interpreter round float32 to bfloat16 as GPUs do: it cuts the bits off."""
    cut = interpreter.InterpreterBuilder.create_fp_trunc

    def create_fp_trunc(self, source, kind):
        if kind.scalar != tl.bfloat16:
            return cut(self, source, kind)
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.uint16)
        return interpreter.TensorHandle(rounded.numpy(), kind.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fp_trunc", create_fp_trunc)


@pytest.fixture
def small_blocks(monkeypatch):
    """Let the small vocabulary have several parts, the last not full."""
    monkeypatch.setattr(kernels, "RANKED_AT_ONCE", 32)
    monkeypatch.setattr(kernels, "BIASED_AT_ONCE", 128)


def by_kernels(watermark, state, reachable=None):
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(dllmark.marking.watermark, "biased_logits", None)  # the kernels or an error
        return watermark.bias(*to(DEVICE, state), reachable=reachable)


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [
        *((name, torch.float32) for name in BIASES),
        *((ENGINE_DEFAULT.name, one) for one in DTYPES[1:]),
    ],
    ids=str,
)
def test_every_strategy_and_dtype_at_the_borders(small_blocks, strategy, dtype):
    watermark, state = make_watermark(strategy), borders(dtype)
    assert same_bits(by_kernels(watermark, state), watermark.bias(*state))


@pytest.mark.parametrize("strategy", BIASES)
def test_only_reachable_tokens_are_biased(small_blocks, strategy):
    watermark, state = make_watermark(strategy), some_positions(torch.float32)
    rng, gains = torch.Generator().manual_seed(0), []
    share = torch.tensor([[0.0, 0.5], [0.01, 1.0], [0.5, 0.0], [0.0, 0.01]])[..., None]
    tokens = torch.rand(*state[3].shape, VOCABULARY, generator=rng) < share

    def reachable(gain):
        gains.append(gain.cpu())
        return tokens.to(gain.device)

    biased = by_kernels(watermark, state, reachable)
    assert same_bits(biased, watermark.bias(*state, reachable))
    assert same_bits(*gains)
    assert (biased.cpu() == watermark.bias(*state))[tokens].all()


@pytest.mark.parametrize("make_state", STATES[1:])
@pytest.mark.parametrize("strategy", BY_PREDICTION)
def test_every_state(small_blocks, strategy, make_state):
    watermark, state = make_watermark(strategy), make_state(torch.bfloat16)
    assert same_bits(by_kernels(watermark, state), watermark.bias(*state))


@pytest.mark.parametrize("strategy", BY_PREDICTION)
def test_a_vocabulary_of_several_parts_of_the_size_that_is_used(strategy):
    tokens, revealed, logits, positions, _ = borders(torch.float32, size=2100)
    watermark = make_watermark(strategy, 2090)
    state = (tokens[3:], revealed[3:], logits[3:].round(), positions[3:, 1:])
    assert same_bits(by_kernels(watermark, state), watermark.bias(*state))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 2)),
    strategy=st.sampled_from(list(BIASES)),
    dtype=st.sampled_from(DTYPES),
    gamma=st.floats(0.01, 0.99),
    delta=st.floats(0, 50),
    top_k=st.integers(1, 5),
    listed=st.booleans(),
    forbidden=st.floats(0, 1),
)
def test_any_state(seed, shape, strategy, dtype, gamma, delta, top_k, listed, forbidden):
    batch, length, each = shape
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, TOKENS, (batch, length), generator=rng)
    revealed = torch.rand(batch, length, generator=rng) < 0.5
    logits = torch.randn(batch, length, VOCABULARY, generator=rng).mul(4).to(dtype)
    logits[torch.rand(logits.shape, generator=rng) < forbidden] = -torch.inf
    covered = torch.stack([torch.randperm(length, generator=rng) for _ in range(batch)])
    if listed:
        covered = covered[:, : (length + 1) // 2]
        logits = logits[:, : covered.shape[1]]
    positions = covered[:, :each].masked_fill(torch.rand(batch, 1, generator=rng) < 0.2, -1)
    watermark = make_watermark(strategy, gamma=gamma, delta=delta, top_k=top_k)
    state = (tokens, revealed, logits, positions, covered if listed else None)
    assert same_bits(by_kernels(watermark, state), watermark.bias(*state))


def test_the_hash_is_siphash():
    messages = [0, 1, 5 << 32 | 7, 2**63, 2**64 - 1, int.from_bytes(bytes(range(8)), "little")]
    for secret in (bytes(range(16)), b"\xff" * 16, b"\x00" * 15 + b"\x80"):
        key = WatermarkKey(Secret(secret), 0.5, TokenizerId("test", "none"))
        tensor = torch.from_numpy(np.array(messages, np.uint64).view(np.int64)).to(DEVICE)
        ours = hash_by_kernel(key, tensor).cpu().numpy().view(np.uint64).tolist()
        theirs = [siphash24(m.to_bytes(8, "little"), key=secret).digest() for m in messages]
        assert ours == [int.from_bytes(digest, "little") for digest in theirs]


@pytest.mark.skipif(DEVICE == "cuda", reason="a failed check ends the process: see gpu.py")
def test_the_kernels_refuse_what_a_gpu_alone_can_see(monkeypatch):
    watermark = make_watermark("predictive")
    tokens, revealed, logits, positions, covered = some_positions(torch.float32)
    # Without the check on the host, as on a GPU: the kernels check for themselves.
    monkeypatch.setattr(State, "check_values", lambda _: None)
    builder = interpreter.interpreter_builder
    checking = replace(builder.options, debug=True, sanitize_overflow=False)
    monkeypatch.setattr(builder, "options", checking)
    with pytest.raises(Exception, match="not among those of the logits"):
        by_kernels(watermark, (tokens, revealed, logits, positions + 1, covered))
    for wrong in (tokens + VOCABULARY, torch.full_like(tokens, -100)):
        with pytest.raises(Exception, match="outside the vocabulary"):
            by_kernels(watermark, (wrong, revealed, logits, positions, covered))


def test_what_the_kernels_do_not_take_goes_by_torch(monkeypatch):
    state = to(DEVICE, borders(torch.float32))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(kernels, "biased_logits", None)
    watermark = make_watermark("expected-bidirectional", top_k=70)
    assert watermark.bias(*state).shape == (4, 2, VOCABULARY)
    watermark = make_watermark("expected-bidirectional")
    assert watermark.bias(*state[:2], state[2].double(), state[3]).dtype == torch.float64
    logits = state[2].clone().requires_grad_()
    watermark.bias(*state[:2], logits, state[3]).sum().backward()
    assert logits.grad.sum() == 8 * VOCABULARY  # an empty position counts as the first


def test_tensors_of_inference_mode_leave_nothing_behind():
    watermark, state = make_watermark("kgw"), borders(torch.float32)
    with torch.inference_mode():
        marked = by_kernels(watermark, state)
    logits = state[2].clone().requires_grad_()
    plain = watermark.bias(*state[:2], logits, state[3])
    plain.sum().backward()
    assert same_bits(marked.clone(), plain.detach())


def test_the_key_shows_nowhere(monkeypatch):
    watermark = make_watermark("kgw")
    by_kernels(watermark, borders(torch.float32))
    [device_key] = watermark._keys.values()
    words = device_key.reveal().tolist()

    def fail(*arguments, **options):
        raise RuntimeError("no launch")

    monkeypatch.setattr(kernels, "_add_bias", defaultdict(lambda: fail))
    with pytest.raises(RuntimeError) as caught:
        by_kernels(watermark, borders(torch.float32))
    below = caught.value.__traceback__.tb_next
    frames = traceback.TracebackException(RuntimeError, caught.value, below, capture_locals=True)
    for shown in (repr(vars(watermark)), "".join(frames.format())):
        assert "<secret>" in shown
        assert not any(str(word) in shown for word in words)


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU to run on")
def test_they_compile_for_a_gpu_once_and_without_the_key(tmp_path):
    script = Path(__file__).parents[1] / "support" / "compile_kernels.py"
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == [
        "_add_bias", "_collect_terms", "_softmax_sums", "_top_k_entries",
    ]  # fmt: skip


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("strategy", BIASES)
def test_a_graph_holds_the_whole_call(monkeypatch, strategy, fused):
    if not fused:
        monkeypatch.setattr(dllmark.marking.watermark, "_takes", lambda *_: False)
    graph_follows_its_inputs(make_watermark(strategy))


def test_nobody_needs_triton():
    """Without it, and before the first bias on a GPU, the torch path does everything."""
    code = (
        "import sys; import dllmark.marking.watermark; print('triton' in sys.modules)\n"
        "sys.modules['triton'] = None\n"
        "import torch; from dllmark import Watermark, WatermarkKey, load_tokenizer\n"
        "watermark = Watermark(WatermarkKey.generate(load_tokenizer('embedded').id), delta=1.0)\n"
        "tokens, revealed = torch.tensor([[7, 2, 9]]), torch.tensor([[True, False, True]])\n"
        "logits = torch.zeros(1, 3, 16_384)\n"
        "print(watermark.bias(tokens, revealed, logits, torch.tensor([[1]])).unique().tolist())\n"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines() == ["False", "[0.0, 1.0, 2.0]"]
