"""What tests of scanning share: a corpus with marked documents in it, and scans of it."""

import pytest
from corpora import make_corpus
from samples import marked_text, plain_text

pytest.importorskip("pyarrow", reason="pip install 'dllmark[scan]'")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    """Undo what a scan in this process says to the tokenizers."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def texts(key, tokenizer):
    """20 texts of 60 words, every fifth marked with the fixed key."""
    return [
        marked_text(key, tokenizer, 60, n) if n % 5 == 0 else plain_text(tokenizer, 60, n)
        for n in range(20)
    ]


@pytest.fixture
def corpus(tmp_path, texts):
    """A folder with those texts in files of every kind."""
    return make_corpus(tmp_path / "corpus", texts)
