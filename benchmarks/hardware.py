"""Say what a benchmark ran on, so that its figures can be read later."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path


def describe() -> str:
    """Return the date, processor, GPU if any, core count and Python version in one line."""
    today = datetime.now(timezone.utc).date().isoformat()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{today}, {_processor()}{_gpu()}, {cores} cores, Python {platform.python_version()}"


def _gpu() -> str:
    """Return the GPU's name where a program that uses torch can use one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    return f", {torch.cuda.get_device_name()}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return f"{platform.system()} {platform.machine()}"
