"""Whether kernels can be compiled here; asking is what first imports Triton."""

import functools


@functools.cache
def has_triton() -> bool:
    """Return whether there is a Triton that compiles the kernels: 3.4 or later."""
    try:
        import triton
    except ImportError:
        return False
    major, minor = triton.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 4)
