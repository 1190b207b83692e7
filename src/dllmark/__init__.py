"""Watermark text written by diffusion language models, and recognise it later.

Detection needs numpy and tokenizers only, generation needs torch: each name below is imported when
it is first asked for, so that one never waits for the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dllmark.detect import Detection, Detector, Span, TokenMark, Verdict, detect_any
    from dllmark.errors import DllmarkError
    from dllmark.greenlist import BitMatrix, HashedGreenList, ReferenceBitmap
    from dllmark.key import WatermarkKey
    from dllmark.models.loading import Model, load_model
    from dllmark.sampling import Dream, Generation, Llada, Parallel, generate
    from dllmark.text import Tokenizer, load_tokenizer
    from dllmark.watermark import STRATEGIES, Strategy, Watermark

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
    "detect": ("Detection", "Detector", "Span", "TokenMark", "Verdict", "detect_any"),
    "errors": ("DllmarkError",),
    "greenlist": ("BitMatrix", "HashedGreenList", "ReferenceBitmap"),
    "key": ("WatermarkKey",),
    "models.loading": ("Model", "load_model"),
    "sampling": ("Dream", "Generation", "Llada", "Parallel", "generate"),
    "text": ("Tokenizer", "load_tokenizer"),
    "watermark": ("STRATEGIES", "Strategy", "Watermark"),
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
