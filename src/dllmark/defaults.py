"""The mark that is made where nothing else is asked for; docs/defaults.md says why this one."""

from __future__ import annotations

STRATEGY = "guided-bidirectional"
DELTA = 3.0
