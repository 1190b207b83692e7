"""Check the kernels on a GPU, and time them: PYTHONPATH=src python3 tests/support/gpu.py

Needs torch with CUDA, triton and tokenizers, no pytest. Every state of `kernel_cases.py` gives on
the GPU, by the kernels and by torch, the bits that torch gives on the CPU. The transformer's
kernels give what torch gives on the same GPU, but for rounding.
"""

import functools
import os
import subprocess
import sys
import time

import numpy as np
import torch
from fused_cases import (
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
from kernel_cases import (
    DTYPES,
    STATES,
    borders,
    graph_follows_its_inputs,
    hash_by_kernel,
    make_watermark,
    same_bits,
    some_positions,
    to,
    triton,
)

import dllmark.marking.watermark
from dllmark.marking.strategies import BIASES
from dllmark.models.transformer import Norm, rotate, swiglu, turn, unfused
from dllmark.relation.prf import siphash

SIZE = 126_464  # of LLaDA
TOKENS = 126_349


def check_every_state():
    for strategy in BIASES:
        for top_k in (3, 64):
            watermark = make_watermark(strategy, top_k=top_k)
            for make_state in STATES:
                for dtype in DTYPES:
                    state = make_state(dtype)
                    biased = watermark.bias(*to("cuda", state))
                    case = f"{strategy}, {make_state.__name__}, {dtype}, {top_k}"
                    assert biased.is_cuda and same_bits(biased, watermark.bias(*state)), case


def check_the_vocabulary_of_a_model():
    for strategy in BIASES:
        watermark = make_watermark(strategy, TOKENS, top_k=8)
        for dtype in DTYPES:
            state = borders(dtype, SIZE)
            assert same_bits(watermark.bias(*to("cuda", state)), watermark.bias(*state))


def on_its_device(tokens, gain):
    return tokens.to(gain.device)


def check_reachable_tokens():
    for strategy in BIASES:
        watermark = make_watermark(strategy, TOKENS, top_k=8)
        for dtype in DTYPES:
            state = borders(dtype, SIZE)
            tokens = torch.rand(*state[3].shape, SIZE) < 1e-4
            reachable = functools.partial(on_its_device, tokens)
            biased = watermark.bias(*to("cuda", state), reachable)
            assert same_bits(biased, watermark.bias(*state, reachable))


def check_the_hash():
    messages = np.random.default_rng(0).integers(2**64, size=1000, dtype=np.uint64)
    key = make_watermark("kgw")._source
    on_gpu = hash_by_kernel(key, torch.from_numpy(messages.view(np.int64)).cuda())
    assert (on_gpu.cpu().numpy().view(np.uint64) == siphash(key, messages)).all()


def check_graphs():
    for strategy in BIASES:
        graph_follows_its_inputs(make_watermark(strategy))


def check_that_nothing_waits():
    state = to("cuda", some_positions(torch.bfloat16))
    for strategy in BIASES:
        watermark = make_watermark(strategy)
        watermark.bias(*state)
        torch.cuda.set_sync_debug_mode("error")
        watermark.bias(*state)
        torch.cuda.set_sync_debug_mode("default")


def check_what_stays_in_memory():
    watermark = make_watermark("expected-bidirectional", TOKENS)
    state = to("cuda", borders(torch.bfloat16, SIZE))
    before = torch.cuda.memory_allocated()
    watermark.bias(*state)
    assert torch.cuda.memory_allocated() - before <= 1 << 20


def check_more_than_2_to_the_31_logits():
    length = 17_000
    tokens = torch.randint(10, TOKENS, (1, length), device="cuda")
    revealed = torch.rand(1, length, device="cuda") < 0.5
    logits = torch.randn(1, length, SIZE, dtype=torch.bfloat16, device="cuda")
    positions = torch.arange(length, device="cuda")[None]
    watermark = make_watermark("predictive-bidirectional", TOKENS)
    last = watermark.bias(tokens, revealed, logits, positions)[:, -3:].cpu()
    covered = positions[:, -4:].cpu()
    state = (tokens.cpu(), revealed.cpu(), logits[:, -4:].cpu(), covered[:, 1:], covered)
    assert same_bits(last, watermark.bias(*state))


def check_what_is_refused():
    """A check that fails on the GPU ends the process, so another one tries."""
    code = (
        "import torch; from kernel_cases import make_watermark, some_positions, to\n"
        "tokens, revealed, logits, positions, covered = to('cuda', some_positions(torch.half))\n"
        "make_watermark('kgw').bias(tokens, revealed, logits, positions + 1, covered)\n"
        "torch.cuda.synchronize()\n"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode and b"not among those of the logits" in done.stderr, done.stderr[-2000:]


def check_rotation():
    for heads in (*HEADS, (32, 32, 128), (28, 4, 128)):
        for dtype in DTYPES:
            *before, at, angles = heads_to_turn(*heads, dtype)
            for x, turned in zip(before, fused.rotate(*before, *angles), strict=True):
                near(turned, turn(x, angles))
                near(turned, turned_one_by_one(x, at))


def check_gates_and_norms():
    for width in (*WIDTHS, 3584, 4096, 18_944):
        for dtype in DTYPES:
            x, added, weight = (some(2, 3, width, dtype=dtype, seed=n) for n in range(3))
            weight = weight[0, 0]
            near(fused.swiglu(x, added), torch.nn.functional.silu(x.double()) * added.double())
            total, normed = fused.norm(x, added, weight, 1e-5)
            assert same_bits(total, x + added)
            near(normed, normed_exactly(total, weight, 1e-5))
            near(fused.norm(total, None, weight, 1e-5)[1], normed)


def apart(one, other):
    """The largest difference between two tensors, against the largest number in them."""
    return ((one.float() - other.float()).abs().max() / other.float().abs().max()).item()


@torch.inference_mode()
def check_the_logits_of_a_model():
    tokens = some_tokens(3, 61)
    for dtype, most in zip(DTYPES, (1e-5, 0.03, 0.005), strict=True):
        for shifted in (False, True):
            model = make_transformer(dtype, shifted=shifted)
            logits = logits_of(model, tokens)
            with unfused():
                plain = logits_of(model, tokens)
            assert not same_bits(logits, plain), "the kernels were not used"
            assert apart(logits, plain) < most, f"{dtype}: {apart(logits, plain)}"


@torch.inference_mode()
def check_a_graph_of_a_model():
    model, tokens = make_transformer(torch.bfloat16), some_tokens()
    model(tokens)
    torch.cuda.set_sync_debug_mode("error")
    model(tokens)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(tokens)
    before = model(tokens)
    tokens.copy_(tokens.flip(1))
    graph.replay()
    assert apart(logits, model(tokens)) < 0.03 < apart(logits, before)


def check_that_a_model_can_be_trained():
    tokens = some_tokens()
    model = make_transformer(torch.float32).requires_grad_()
    compiled = torch.compile(model)
    for run in (model, compiled):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            run(tokens).logsumexp(-1).sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens)
        with unfused():
            assert apart(logits, model(tokens)) < 0.03


def check_more_than_2_to_the_31_numbers_of_a_model():
    length, last = 2**31 // 4096 + 5, slice(-3, None)
    x = torch.randn(1, length, 4096, dtype=torch.bfloat16, device="cuda")
    near(fused.swiglu(x, x)[:, last], torch.nn.functional.silu(x[:, last]) * x[:, last])
    near(fused.norm(x, x, x[0, 0], 1e-5)[0][:, last], 2 * x[:, last])
    heads = x.view(1, length, 32, 128)
    angles = [torch.rand(length, 1, 64, device="cuda").repeat(1, 1, 2) for _ in range(2)]
    angles[1][..., :64] *= -1
    ends = [angle[last] for angle in angles]
    for turned in fused.rotate(heads, heads[:, :, :1], *angles):
        near(turned[:, last], turn(heads[:, last, : turned.shape[2]], ends))


def by_torch(check):
    """Run a check without the kernels."""
    takes, dllmark.marking.watermark._takes = dllmark.marking.watermark._takes, lambda *_: False
    try:
        check()
    finally:
        dllmark.marking.watermark._takes = takes


def microseconds(watermark, batch, each, revealed_share):
    """The time of one call among many in a graph, in the middle of LLaDA's generation."""
    rng = torch.Generator("cuda").manual_seed(0)
    covered = torch.arange(250, 283, device="cuda").expand(batch, -1)
    tokens = torch.randint(10, TOKENS, (batch, 286), generator=rng, device="cuda")
    revealed = torch.rand(batch, 286, generator=rng, device="cuda") < revealed_share
    logits = torch.randn(batch, 33, SIZE, generator=rng, device="cuda").bfloat16()
    positions = covered[:, 1 : 3 * each : 3].contiguous()
    return in_a_graph(lambda: watermark.bias(tokens, revealed, logits, positions, covered))


def in_a_graph(work):
    """The microseconds of some work, one of many in a graph."""
    work()
    torch.cuda.synchronize()
    graph, calls = torch.cuda.CUDAGraph(), 20
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return sorted(times)[len(times) // 2]


def time_it():
    print("\nmicroseconds a call in a CUDA graph, vocabulary 126,464, bfloat16")
    print(f"{'texts x positions, revealed':32}" + "".join(f"{name:>26}" for name in BIASES))
    for batch, each in ((1, 1), (8, 1), (32, 1), (32, 8)):
        for share in (0.0, 1.0):
            watermarks = [make_watermark(name, TOKENS, top_k=8) for name in BIASES]
            row = [microseconds(watermark, batch, each, share) for watermark in watermarks]
            name = f"{batch} x {each}, {'all' if share else 'none'}"
            print(f"{name:32}" + "".join(f"{value:26.1f}" for value in row), flush=True)


@torch.inference_mode()
def time_a_block():
    print("\nmicroseconds of a block's element-wise work in a CUDA graph: kernels, torch; bfloat16")
    print(f"{'model, texts of 286':24}" + "".join(f"{n:>20}" for n in ("rotate", "swiglu", "norm")))
    for name, heads, gate in (("LLaDA-8B", (32, 32), 12_288), ("Dream-7B", (28, 4), 18_944)):
        norm = Norm(heads[0] * 128, 1e-5).to("cuda", torch.bfloat16)
        for batch in (1, 8, 32):
            query, key, _, angles = heads_to_turn(
                *heads, 128, torch.bfloat16, batch=batch, length=286
            )
            wide, stream = (
                torch.randn(batch, 286, width, dtype=torch.bfloat16, device="cuda")
                for width in (gate, heads[0] * 128)
            )
            cells = []
            for work in (
                functools.partial(rotate, query, key, angles),
                functools.partial(swiglu, wide, wide.clone()),
                functools.partial(norm, stream, stream.clone()),
            ):
                ours = in_a_graph(work)
                with unfused():
                    cells.append(f"{ours:.1f}, {in_a_graph(work):.1f}")
            print(f"{f'{name}, {batch}':24}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def main():
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    checks = [check for name, check in globals().items() if name.startswith("check_")]
    for check in checks:
        start = time.perf_counter()
        check()
        print(f"ok  {check.__name__}  {time.perf_counter() - start:.1f} s", flush=True)
    for check in (check_every_state, check_graphs, check_that_nothing_waits):
        by_torch(check)
        print(f"ok  {check.__name__}, by torch", flush=True)
    time_it()
    time_a_block()


if __name__ == "__main__":
    main()
