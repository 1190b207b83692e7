"""The small models of the samplers' and the loaders' tests serve here too."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / "sampling"), str(TESTS / "models")]


@pytest.fixture(scope="module")
def endless(small_tokenizer):
    """A small model whose texts never end early."""
    from tiny import tiny_model

    torch.set_num_threads(1)
    return replace(tiny_model(small_tokenizer), end_ids=())
