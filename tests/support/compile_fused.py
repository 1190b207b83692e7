"""Compile the transformer's kernels for an H200 on a machine without a GPU, and print their names.

Fails if another batch or length is compiled again, or if numbers are read one by one.
`models/test_fused.py` runs it as a program of its own: it needs Triton's compiler.
"""

import torch
from compile_kernels import compiled_once


def block(batch, length):
    """The element-wise work of one block of Dream-7B."""
    from dllmark.models import fused

    def empty(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype)

    angles = empty(length, 1, 128, dtype=torch.float32)
    fused.rotate(empty(batch, length, 28, 128), empty(batch, length, 4, 128), angles, angles)
    fused.swiglu(empty(batch, length, 18_944), empty(batch, length, 18_944))
    stream = empty(batch, length, 3584)
    fused.norm(stream, stream, stream[0, 0], 1e-6)


def blocks():
    block(batch=1, length=286)
    block(batch=8, length=1)
    block(batch=3, length=16)


def main():
    for name, code in compiled_once(blocks).items():
        assert ".v4.b32" in code and "global.b16" not in code, f"{name} is not vectorised"
        print(name)


if __name__ == "__main__":
    main()
