"""Watermark text written by diffusion language models, and recognise it later.

Detection needs numpy and tokenizers only, generation needs torch: each name below is imported when
it is first asked for, so that one never waits for the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dllmark.detection.any_key import detect_any
    from dllmark.detection.detector import Detection, Detector, Span, TokenMark, Verdict
    from dllmark.errors import DllmarkError
    from dllmark.marking.strategies import STRATEGIES, Strategy
    from dllmark.marking.watermark import Watermark
    from dllmark.models.loading import Model, load_model
    from dllmark.relation.greenlist import BitMatrix, HashedGreenList, ReferenceBitmap
    from dllmark.relation.key import WatermarkKey
    from dllmark.relation.tokenizer import Tokenizer, load_tokenizer
    from dllmark.sampling import Dream, Generation, Llada, Parallel, generate

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
    "Llada",
    "Model",
    "Parallel",
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

_HOME = {
    "detection.any_key": ("detect_any",),
    "detection.detector": ("Detection", "Detector", "Span", "TokenMark", "Verdict"),
    "errors": ("DllmarkError",),
    "relation.greenlist": ("BitMatrix", "HashedGreenList", "ReferenceBitmap"),
    "relation.key": ("WatermarkKey",),
    "models.loading": ("Model", "load_model"),
    "sampling": ("Dream", "Generation", "Llada", "Parallel", "generate"),
    "relation.tokenizer": ("Tokenizer", "load_tokenizer"),
    "marking.strategies": ("STRATEGIES", "Strategy"),
    "marking.watermark": ("Watermark",),
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    home = next((module for module, names in _HOME.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'dllmark' has no attribute {name!r}")
    try:
        return getattr(import_module(f"dllmark.{home}"), name)
    except ModuleNotFoundError as error:
        from dllmark.errors import DllmarkError

        if error.name not in ("torch", "safetensors"):
            raise
        raise DllmarkError("generating needs torch: pip install 'dllmark[torch]'") from None
