"""Which documents of a corpus are hits: a rule for all of them, from their p-values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dllmark.errors import InputError

NAMES = {"fdr": "false discovery rate", "fpr": "false-positive rate"}


@dataclass(frozen=True)
class Rule:
    """What a rate bounds: among the hits the share of false ones, or each document's own risk.

    fdr  Benjamini and Hochberg's procedure: the more documents are marked, the more it finds
    fpr  every document whose p-value is at most the rate, whatever else is in the corpus

    No document with a p-value above the rate is a hit under either.

    >>> Rule("fdr", 0.05).largest_p_value(np.array([0.001, 0.02, 0.04]), documents=10)
    0.001
    """

    name: Literal["fdr", "fpr"] = "fdr"
    rate: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise InputError(f"the {NAMES[self.name]} lies in (0, 1); got {self.rate}")

    def largest_p_value(self, p_values: NDArray[np.float64], documents: int) -> float | None:
        """Return the largest p-value of a hit among some documents, or None where none is one.

        Only the p-values up to the rate are needed.
        """
        ordered = np.sort(p_values[p_values <= self.rate])
        if self.name == "fdr":
            ranks = np.arange(1, len(ordered) + 1)
            ordered = ordered[ordered <= self.rate * ranks / documents]
        return float(ordered[-1]) if len(ordered) else None

    def expected_false(self, hits: int, documents: int) -> float:
        """Return how many hits are expected to be false at most."""
        return self.rate * (hits if self.name == "fdr" else documents)
