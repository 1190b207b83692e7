"""A Ray cluster to work on: one that is there, or one started here for as long as it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from dllmark.errors import DllmarkError, InputError, require


def require_ray() -> None:
    """Raise a clear error where Ray is not installed."""
    require("the Ray engine", "ray", "ray")


@dataclass(frozen=True)
class Engine:
    """Where work is done: by workers on this machine, or on the Ray cluster at an address."""

    name: Literal["local", "ray"] = "local"
    workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"give at least 1 worker; got {self.workers}")
        if self.address and self.name != "ray":
            raise InputError("--ray-address is for --engine ray")


@contextmanager
def cluster(address: str | None = None, cores: int | None = None) -> Iterator[None]:
    """Use the cluster this process is connected to, the one at an address, or a local one.

    `cores` is the size of a local one; None takes all. What is connected here is left again at the
    end. Ray's own errors become one line; what workers print does not come here.

    >>> with cluster("ray://head:10001"):  # doctest: +SKIP
    ...     ...
    """
    require_ray()
    import ray

    started = not ray.is_initialized()
    if started:
        _connect(address, cores)
    try:
        yield
    except ray.exceptions.RayError as error:
        raise DllmarkError(
            f"Ray could not finish: {_reason(error)}. What is done is kept; the same command "
            "continues"
        ) from None
    finally:
        if started:
            ray.shutdown()


def _connect(address: str | None, cores: int | None) -> None:
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"num_cpus": cores, "include_dashboard": False}
    try:
        ray.init(address=address or "local", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise DllmarkError(f"cannot reach the Ray cluster: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return the last line of an error: Ray puts the whole remote traceback before it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
