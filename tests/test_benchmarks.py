"""The benchmarks: each loads with the code as it is now, and says how it is used.

What they measure takes minutes or a GPU, and is not repeated here. Their examples are tested where
they stand.
"""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
COMMANDS = [
    path
    for path in sorted(BENCHMARKS.glob("*.py"))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_benchmark_loads_and_says_how_it_is_used(path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(path), run_name="__main__")
    assert stopped.value.code == 0
    assert "usage: " in capsys.readouterr().out
