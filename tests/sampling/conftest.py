"""What the tests of the samplers share: a tiny model, run on one core."""

import pytest
import torch
from tiny import tiny_model


@pytest.fixture(scope="session")
def model(small_tokenizer):
    """A transformer with random weights for the small tokenizer."""
    return tiny_model(small_tokenizer)


@pytest.fixture(autouse=True, scope="package")
def _one_core():
    """Threads cost more than they save on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
