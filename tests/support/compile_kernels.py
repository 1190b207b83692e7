"""Compile the kernels for an H200 on a machine without a GPU, and print their names.

Fails if steps of other sizes or another key are compiled again, or if floating-point operations
are fused. `test_kernels.py` runs it as a program of its own: it needs Triton's compiler, where
the other tests need its interpreter.
"""

from collections import defaultdict

import torch

from dllmark.marking.state import BiasSettings, State
from dllmark.marking.strategies import DEFAULT
from dllmark.relation.key import Secret, TokenizerId, WatermarkKey

SIZE = 126_464


class NoGpu:
    """As much of a driver as compiling asks for."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def step(secret, each, length, covered):
    """One step of the strategy that uses every kernel."""
    from dllmark.marking import kernels
    from dllmark.marking.kernel_hash import DeviceKey

    state = State(
        tokens=torch.zeros(1, length, dtype=torch.int64),
        revealed=torch.zeros(1, length, dtype=torch.bool),
        logits=torch.empty(1, covered, SIZE, dtype=torch.bfloat16),
        positions=torch.zeros(1, each, dtype=torch.int64),
        logit_positions=torch.zeros(1, covered, dtype=torch.int64),
        reachable=lambda gain: torch.zeros(1, each, SIZE, dtype=torch.bool),
    )
    kernels.biased_logits(
        state,
        BiasSettings(DEFAULT, delta=2.0, gamma=0.5, top_k=8),
        torch.zeros(SIZE, dtype=torch.bool),
        DeviceKey(WatermarkKey(Secret(secret), 0.5, TokenizerId("", "")), "cpu"),
    )


def compiled_once(work):
    """Do some work without a GPU; return the code of its kernels, each compiled only once."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    compiled = defaultdict(dict)
    run = JITFunction.run

    def compile_only(function, *arguments, grid, warmup, **options):
        kernel = run(function, *arguments, grid=grid, warmup=True, **options)
        compiled[function.__name__][kernel.hash] = kernel.asm["ptx"]

    driver.set_active(NoGpu())
    JITFunction.run = compile_only
    work()
    for name, variants in compiled.items():
        assert len(variants) == 1, f"{name} was compiled {len(variants)} times"
    return {name: code for name, variants in sorted(compiled.items()) for code in variants.values()}


def steps():
    step(b"a" * 16, each=1, length=286, covered=33)
    step(b"b" * 16, each=16, length=512, covered=1)
    step(b"\x00" * 16, each=5, length=1, covered=48)


def main():
    for name, code in compiled_once(steps).items():
        assert "fma." not in code, f"{name} is fused"
        print(name)


if __name__ == "__main__":
    main()
