"""The watermark in engines that people already run: one thin module for each, one line to use it.

No engine is imported before its adapter is used. `docs/integrations/` compares the adapters.
"""

from __future__ import annotations

from dllmark.errors import DllmarkError

try:
    import torch as _torch  # noqa: F401  every adapter needs it
except ModuleNotFoundError:
    raise DllmarkError("the adapters need torch: pip install 'dllmark[torch]'") from None
