"""What the tests of the adapters share."""

import pytest
import torch

from dllmark.detection.detector import Detector


@pytest.fixture(autouse=True, scope="package")
def _one_core():
    """Threads cost more than they save on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def p_value(small_key, small_tokenizer):
    """The p-value of a text after its prompt, under the small key."""
    detector = Detector(small_key, small_tokenizer)

    def p_value(x, start):
        return detector.detect(x[start:].tolist(), prompt=x[:start].tolist()).p_value

    return p_value
