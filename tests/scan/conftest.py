"""Scanning needs pyarrow: without it these tests are skipped."""

import pytest

pytest.importorskip("pyarrow", reason="pip install 'dllmark[scan]'")


@pytest.fixture(autouse=True)
def _own_environment(scan_environment):
    """Undo what a scan in this process says to the tokenizers."""
