"""What every test starts from: fixed keys, the embedded tokenizer, and one small enough to read."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

import pytest
import torch
from hypothesis import settings

from dllmark.detection.detector import Detector
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.relation.tokenizer import Tokenizer, load_tokenizer

# A slow machine is not a failure, and a commit that passed once passes again. To look for more:
# pytest --hypothesis-profile=search
settings.register_profile("dllmark", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("dllmark")

collect_ignore = [  # an adapter is imported where its engine is
    f"src/dllmark/integrations/{engine}.py"
    for engine in ("diffusers", "sglang", "transformers")
    if importlib.util.find_spec(engine) is None
]
if importlib.util.find_spec("triton") is None:  # it exists for Linux alone
    collect_ignore += [
        *("src/dllmark/marking/kernels.py", "src/dllmark/marking/kernel_hash.py"),
        *("src/dllmark/models/fused.py", "tests/support/kernel_cases.py"),
        *("tests/support/fused_cases.py", "tests/support/gpu.py"),
    ]
elif not torch.cuda.is_available():  # for its interpreter, before anything else imports it
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.experimental.gluon  # noqa: F401  a launch would import it, too late

    del os.environ["TRITON_INTERPRET"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Give each process one thread, in its threads and in what it starts: they share the cores."""
    os.environ["OMP_NUM_THREADS"] = "1"


SMALL_VOCABULARY = ["<pad>", "<end>", "<mask>", *(f"w{number}" for number in range(32))]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The tokenizer that ships with the package."""
    return load_tokenizer("embedded")


@pytest.fixture(scope="session")
def key(tokenizer: Tokenizer) -> WatermarkKey:
    """A fixed key for the embedded tokenizer."""
    return WatermarkKey(Secret(bytes(range(16))), 0.5, tokenizer.id)


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    """35 words, the first three of them special."""
    definition = {
        "version": "1.0",
        "added_tokens": [
            {"id": id_, "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
            for id_, content in enumerate(SMALL_VOCABULARY[:3])
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: id_ for id_, word in enumerate(SMALL_VOCABULARY)},
            "unk_token": "<pad>",
        },
    }  # fmt: skip
    return Tokenizer(json.dumps(definition), "small")


@pytest.fixture(scope="session")
def small_key(small_tokenizer: Tokenizer) -> WatermarkKey:
    """A fixed key for the small tokenizer."""
    return WatermarkKey(Secret(b"sixteen bytes ok"), 0.5, small_tokenizer.id)


@pytest.fixture(autouse=True)
def _doctest_names(
    doctest_namespace: dict[str, Any], key: WatermarkKey, tokenizer: Tokenizer
) -> None:
    """Give the examples in docstrings the names they use."""
    import numpy as np

    from dllmark.marking.watermark import Watermark
    from dllmark.relation.key import TokenizerId

    doctest_namespace.update(
        np=np,
        key=key,
        other_key=WatermarkKey.generate(tokenizer.id),
        TokenizerId=TokenizerId,
        Detector=Detector,
        watermark=Watermark(key, tokenizer=tokenizer),
    )
