"""Which payload a text carries: every payload's key is tried, and the p-value corrected for it.

Under a payload that did not mark the text, each distinct pair is green with probability γ,
independently of all other payloads. So the best of K payloads has the exact p-value 1 - (1-P)^K,
where P is the chance of one. As with any key, P is taken at the share of green pairs that the best
payload's key leads to expect of the text, where that is above γ: no p-value gets smaller by it.

Of more than `SCREENED` payloads, a third of the pairs is counted first, and only payloads among the
greenest eighth there are counted to the end. The rule is fixed before the text is seen, so P is
exact with it too: the chance that one payload passes the screen *and* has so many green pairs. A
payload that marked the text passes almost always, and detection takes less than half the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllmark.detection.any_key import key_tokenizers
from dllmark.detection.detector import Detection, Detector, Verdict, verdicts
from dllmark.detection.expected import expected_shares
from dllmark.detection.family import Encoded, FamilyDetector, Scores
from dllmark.detection.power import mark_strength, pairs_needed
from dllmark.detection.stats import binomial_tail, family_wise, one_of_family, z_score
from dllmark.errors import MismatchError
from dllmark.relation.greenlist import HashedGreenList, green_counts
from dllmark.relation.key import WatermarkKey
from dllmark.relation.payload import Payload, Payloads
from dllmark.relation.prf import pair_message
from dllmark.relation.tokenizer import AnyTokenizer, Ids, load_tokenizer

SCREENED = 4096
"""Of more payloads than these, most are left out after a third of the pairs."""

SHARE = 1 / 8
"""At least this share of the payloads passes the screen."""

DEVICE_BLOCK = 1 << 23
"""Pairs times payloads hashed at a time on a device, in some 500 MB."""


@dataclass(frozen=True)
class PayloadDetection(Detection):
    """A detection with the payload of the text: None where the text is not marked, or not clearly.

    A marked text's payload is unclear where another payload is right with a probability above the
    false-positive rate.
    """

    payload: Payload | None = None


class PayloadDetector(FamilyDetector):
    """Detects texts that one key marked with any of its payloads, and says with which.

    `place` puts an int64 array on a device, where the counting is then done:
    `lambda array: torch.from_numpy(array).cuda()`.

    >>> detector = PayloadDetector(key, Payloads(16))
    >>> detector.detect("A short text.").verdict.value
    'too short'
    """

    def __init__(
        self,
        key: WatermarkKey | str | Path,
        payloads: Payloads,
        tokenizer: AnyTokenizer | None = None,
        *,
        fpr: float = 0.01,
        marked_share: float | None = None,
        place: Callable[[NDArray[np.int64]], Any] | None = None,
    ) -> None:
        key = key if isinstance(key, WatermarkKey) else WatermarkKey.load(key)
        checked = Detector(key, tokenizer, fpr=fpr).tokenizer
        self.payloads = payloads
        self.tokenizers = {checked.fingerprint: checked}
        self.fpr = fpr
        self.mark_strength = mark_strength(marked_share, key.gamma)
        self._key = key
        self._place = place
        secrets = payloads.secrets(key)
        self._secrets = secrets if place is None else secrets.placed(place)

    def __len__(self) -> int:
        return len(self.payloads)

    def check_claim(self, claimed: dict[str, Any]) -> None:
        """Raise `MismatchError` where a text's stored identity is none of the payloads' keys'."""
        if str(claimed.get("key_id")) not in self._numbers:
            raise MismatchError(
                f"the text was marked with key_id {claimed.get('key_id')!r}, which is none of the "
                f"{len(self):,} payloads of key {self._key.id}: use the key and the payloads the "
                "text was generated with"
            )
        self._key.identity.check_claim({**claimed, "key_id": self._key.id})

    def _score(self, encoded: Encoded) -> Scores:
        [(ids, lengths)] = encoded.values()
        found = [
            self._find(text) for text in np.split(ids, np.cumsum(lengths)[:-1])[: len(lengths)]
        ]
        green, pairs, best = (
            np.array([getattr(one, name) for one in found], dtype=np.int64)
            for name in ("green", "pairs", "number")
        )
        p_value, expected = (
            np.array([getattr(one, name) for one in found]) for name in ("p_value", "expected")
        )
        rate = one_of_family(self.fpr, len(self))
        needed = pairs_needed(expected, rate, self.mark_strength)
        verdict = verdicts(p_value, pairs < needed, self.fpr)
        payload, key_id = np.full((2, len(found)), None)
        for at, one in enumerate(found):
            key_id[at] = one.key_id
            payload[at] = self.payloads[one.number] if one.clear else None
        z = z_score(green, pairs, self._key.gamma)
        return Scores(verdict, z, p_value, pairs, green, expected, best, key_id, payload)

    def _find(self, ids: Ids) -> _Found:
        """Return the payload that fits a text best."""
        left, right = ids[:-1], ids[1:]
        [tokenizer] = self.tokenizers.values()
        scored = tokenizer.scored[left] & tokenizer.scored[right]
        message = np.unique(pair_message(left[scored], right[scored]).astype(np.uint64))
        first = message[::3] if len(self) > SCREENED else message[:0]
        rest = np.delete(message, slice(None, None, 3)) if len(first) else message
        screen = Screen(len(first), len(rest), self._key.gamma)
        count = self._count(slice(None), first)
        passed = np.flatnonzero(count >= min(screen.least, count.max()))
        total = count[passed] + self._count(passed, rest)
        best = int(np.argmax(total))
        green, number = int(total[best]), int(passed[best])
        key = self.payloads.key(self._key, self.payloads[number])
        own = HashedGreenList(key, tokenizer.vocab_size)
        expected = float(expected_shares(own, tokenizer, ids, np.array([len(ids)]))[0])
        p_value = float(family_wise(screen.chance(green, expected), len(self)))
        others, left_out = np.delete(total, best), np.delete(count, passed)
        clear = p_value <= self.fpr and screen.doubt(green, others, left_out) <= self.fpr
        return _Found(number, key.id, green, len(message), expected, p_value, clear)

    def _count(self, which: slice | NDArray[np.int64], message: NDArray[np.uint64]) -> Any:
        """Return the green pairs under some of the payloads."""
        gamma = self._key.gamma
        if self._place is None:
            return green_counts(self._secrets[which], message, gamma)
        if isinstance(which, np.ndarray):
            which = self._place(which)
        placed = self._place(message.view(np.int64))
        return green_counts(self._secrets[which], placed, gamma, DEVICE_BLOCK)

    def _detections(self, scores: Scores) -> list[Detection]:
        alike: dict[str, Any] = {
            "gamma": self._key.gamma, "fpr": self.fpr, "scoring": "unique",
            "scheme": self._key.identity.scheme, "mark_strength": self.mark_strength,
            "keys_tried": len(self),
        }  # fmt: skip
        names = "z", "p_value", "pairs", "green", "expected", "key_id", "payload"
        columns = [scores.verdict, *(getattr(scores, name) for name in names)]
        return [
            PayloadDetection(Verdict(verdict), **dict(zip(names, row, strict=True)), **alike)
            for verdict, *row in zip(*(column.tolist() for column in columns), strict=True)
        ]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each payload by its key's id: made only where texts are looked into."""
        return {id_: number for number, id_ in enumerate(self.payloads.key_ids(self._key))}

    def _named_by(self, detection: Detection) -> Detector:
        payload = self.payloads[self._numbers[detection.key_id]]
        [tokenizer] = self.tokenizers.values()
        return Detector(self.payloads.key(self._key, payload), tokenizer, fpr=self.fpr)


def load_payload_detector(
    key: WatermarkKey,
    payloads: Payloads,
    moved: Sequence[str] = (),
    *,
    fpr: float = 0.01,
    marked_share: float | None = None,
) -> PayloadDetector:
    """Return the detector of a key's payloads, with its tokenizer loaded from where it is now."""
    tokenizers = key_tokenizers([key], [load_tokenizer(source) for source in moved])
    tokenizer = tokenizers[key.tokenizer.fingerprint]
    return PayloadDetector(key, payloads, tokenizer, fpr=fpr, marked_share=marked_share)


@dataclass(frozen=True)
class _Found:
    """The payload that fits a text best, by its number; `clear` where it marked the text."""

    number: int
    key_id: str
    green: int
    pairs: int
    expected: float
    p_value: float
    clear: bool


@dataclass(frozen=True)
class Screen:
    """The chances of one payload whose green pairs are counted in two parts.

    Only a payload with at least `least` green pairs of the `first` is counted to the end.

    >>> Screen(first=0, rest=2, gamma=0.5).chance(2, expected=0.5)
    0.25
    """

    first: int
    rest: int
    gamma: float

    @cached_property
    def least(self) -> int:
        """The green pairs of the first part that at least a share of all payloads reach."""
        tails = binomial_tail(np.arange(self.first + 1), self.first, self.gamma)
        return int(np.flatnonzero(tails >= SHARE)[-1])

    def chance(self, green: int, expected: float) -> float:
        """Return how likely a payload that did not mark the text passes with as many green."""
        of_first = np.arange(self.least, self.first + 2)
        tails = binomial_tail(of_first, self.first, expected)
        reach = binomial_tail(green - of_first[:-1], self.rest, expected)
        return float(-np.diff(tails) @ reach)

    def doubt(self, green: int, others: NDArray[np.int64], left_out: NDArray[np.int64]) -> float:
        """Return the probability that another payload marked the text than the one that fits best.

        It is Bayes' rule, with all payloads equally likely before. Of payloads that the screen left
        out, whose counts are of the first part, the rest is taken as chance has it.
        """
        log_weight = self.log_weights - self.log_weights[green]
        against = np.exp(log_weight[others]).sum()
        chance = _log_probabilities(self.rest, self.gamma)
        payloads = np.bincount(left_out)
        for count in np.flatnonzero(payloads):
            reached = log_weight[count : count + self.rest + 1]
            against += payloads[count] * np.exp(chance + reached).sum()
        return float(against / (1 + against))

    @cached_property
    def log_weights(self) -> NDArray[np.float64]:
        """How much likelier each count is if a payload marked the text than if it did not, as logs.

        Marked pairs are green at a rate of which nothing is known but that it lies above γ: the
        integral of the likelihood over all such rates is a binomial distribution function.
        """
        pairs = self.first + self.rest
        counts = np.arange(pairs + 1)
        below = 1 - binomial_tail(counts + 1, pairs + 1, self.gamma)
        with np.errstate(divide="ignore"):
            marked = np.log(below / ((pairs + 1) * (1 - self.gamma)))
        weights: NDArray[np.float64] = marked - _log_probabilities(pairs, self.gamma)
        # Far below the mean, `below` is but a rounding error; the weight is less than one there.
        return np.where(counts <= self.gamma * pairs, np.minimum(weights, 0), weights)


def _log_probabilities(pairs: int, gamma: float) -> NDArray[np.float64]:
    """Return the logs of P(X = 0), ..., P(X = pairs) for X ~ Binomial(pairs, γ)."""
    factorial = np.array([math.lgamma(k + 1) for k in range(pairs + 1)])
    green = np.arange(pairs + 1)
    ways = factorial[pairs] - factorial - factorial[::-1]
    logs: NDArray[np.float64] = ways + green * math.log(gamma) + green[::-1] * math.log1p(-gamma)
    return logs
