"""Watermark text written by diffusion language models, and recognise it later.

Detection needs numpy and tokenizers only, generation needs torch: each name below is imported when
it is first used, so that one never waits for the other. Without torch, the names that need it are
missing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dllmark.detection.any_key import detect_any
    from dllmark.detection.detector import Detection, Detector, Span, TokenMark, Verdict
    from dllmark.detection.payload import PayloadDetection, PayloadDetector
    from dllmark.errors import DllmarkError
    from dllmark.marking.strategies import STRATEGIES, Strategy
    from dllmark.marking.watermark import Watermark
    from dllmark.models.loading import Model, load_model
    from dllmark.relation.greenlist import BitMatrix, HashedGreenList, ReferenceBitmap
    from dllmark.relation.key import WatermarkKey
    from dllmark.relation.keyring import KeyRing
    from dllmark.relation.payload import Payloads
    from dllmark.relation.tokenizer import Tokenizer, load_tokenizer
    from dllmark.sampling.settings import Dream, Llada, Llada2, Parallel
    from dllmark.sampling.texts import Generation, generate

__version__ = "0.1.0"

__all__ = [
    "STRATEGIES",
    "BitMatrix",
    "Detection",
    "Detector",
    "DllmarkError",
    "Dream",
    "Generation",
    "HashedGreenList",
    "KeyRing",
    "Llada",
    "Llada2",
    "Model",
    "Parallel",
    "PayloadDetection",
    "PayloadDetector",
    "Payloads",
    "ReferenceBitmap",
    "Span",
    "Strategy",
    "TokenMark",
    "Tokenizer",
    "Verdict",
    "Watermark",
    "WatermarkKey",
    "detect_any",
    "generate",
    "load_model",
    "load_tokenizer",
]

_LIGHT = {
    "detection.any_key": ("detect_any",),
    "detection.detector": ("Detection", "Detector", "Span", "TokenMark", "Verdict"),
    "detection.payload": ("PayloadDetection", "PayloadDetector"),
    "errors": ("DllmarkError",),
    "marking.strategies": ("STRATEGIES", "Strategy"),
    "relation.greenlist": ("BitMatrix", "HashedGreenList", "ReferenceBitmap"),
    "relation.key": ("WatermarkKey",),
    "relation.keyring": ("KeyRing",),
    "relation.payload": ("Payloads",),
    "relation.tokenizer": ("Tokenizer", "load_tokenizer"),
}
_WITH_TORCH = {
    "marking.watermark": ("Watermark",),
    "models.loading": ("Model", "load_model"),
    "sampling.settings": ("Dream", "Llada", "Llada2", "Parallel"),
    "sampling.texts": ("Generation", "generate"),
}
_HOME = {name: home for home, names in {**_LIGHT, **_WITH_TORCH}.items() for name in names}
_TORCH = ("torch", "safetensors")

if any(find_spec(package) is None for package in _TORCH):
    __all__ = [name for name in __all__ if not any(name in names for names in _WITH_TORCH.values())]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module 'dllmark' has no attribute {name!r}")
    try:
        return getattr(import_module(f"dllmark.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _TORCH:
            raise
        from dllmark.errors import MissingNameError, MissingPackageError

        # `hasattr` expects an AttributeError. `from dllmark import name` would replace its message
        # by one of its own, and lets an ImportError through: importlib looks for the name first.
        importing = sys._getframe(1).f_code.co_name == "_handle_fromlist"
        missing = MissingPackageError if importing else MissingNameError
        raise missing(f"{name} needs torch: pip install 'dllmark[torch]'") from None
