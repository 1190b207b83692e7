"""The watermark in engines that people already run: one thin module for each, one line to use it.

Each module imports the engine it is for. `docs/integrations/` compares the adapters.
"""

from __future__ import annotations

from dllmark.errors import MissingPackageError

try:
    import torch as _torch  # noqa: F401  every adapter needs it
except ModuleNotFoundError:
    raise MissingPackageError("the adapters need torch: pip install 'dllmark[torch]'") from None
