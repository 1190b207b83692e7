"""Recognise the watermark: count green pairs, and say how surprising the count is.

Under a key that did not mark a text, each distinct pair of neighbouring tokens is green with
probability γ, independently: the p-value is an exact binomial tail. A repeated pair is the same
coin shown again, so by default each distinct pair counts once. Where the key in hand happens to
make ordinary text greener than γ, the tail is taken at that share instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dllmark.detection.counting import count_pairs
from dllmark.detection.expected import expected_shares
from dllmark.detection.power import mark_strength, marked_shares, pairs_needed, powers
from dllmark.detection.spans import best_segments
from dllmark.detection.stats import binomial_tail, one_of_family, z_score
from dllmark.detection.words import Strength, conclusion, strength
from dllmark.errors import InputError
from dllmark.relation.greenlist import HashedGreenList
from dllmark.relation.key import Identity, WatermarkKey
from dllmark.relation.source import Source, resolve
from dllmark.relation.tokenizer import AnyTokenizer, Ids, Tokenizer

Scoring = Literal["unique", "all"]
Mark = Literal["green", "red", "not scored"]
TextOrIds = str | Sequence[int] | Ids

Bools = NDArray[np.bool_]
Prepared = TypeVar("Prepared", bound=str | Ids)

BATCH_TEXTS = 1024
BATCH_CHARACTERS = 1 << 22


class Verdict(str, Enum):
    """What a detection concludes. "watermarked" means consistent with the key, not authorship.

    "too short" means that too few marked texts of this length would be found for a miss to mean
    something.
    """

    WATERMARKED = "watermarked"
    NOT_DETECTED = "not detected"
    TOO_SHORT = "too short"


@dataclass(frozen=True)
class Detection:
    """The evidence in one text, and the verdict at a false-positive rate.

    `expected` is the share of green pairs that the p-value is tested against: γ, or more where the
    key happens to colour the common pairs of such a text green (see `expected.py`).
    `mark_strength` is how much the mark is taken to raise the log-odds of a green pair.
    """

    verdict: Verdict
    z: float
    p_value: float
    pairs: int
    green: int
    gamma: float
    expected: float
    fpr: float
    scoring: Scoring
    key_id: str
    scheme: str
    mark_strength: float
    keys_tried: int = 1

    @property
    def green_fraction(self) -> float:
        """The share of scored pairs that are green (0 where none was scored)."""
        return self.green / self.pairs if self.pairs else 0.0

    @property
    def strength(self) -> Strength | None:
        """How strong the evidence is, in a word; None where the text is not called watermarked."""
        return strength(self.p_value) if self.verdict is Verdict.WATERMARKED else None

    @property
    def expected_if_marked(self) -> float:
        """The share of green pairs that a marked text is taken to have."""
        return float(marked_shares(self.expected, self.mark_strength))

    @cached_property
    def power(self) -> float:
        """The chance that a marked text with as many pairs is called watermarked."""
        return float(powers(self.pairs, *self._tested))

    @cached_property
    def pairs_needed(self) -> int:
        """How many pairs a text needs for 95 % of marked ones to be called watermarked."""
        return int(pairs_needed(*self._tested))

    @property
    def _tested(self) -> tuple[float, float, float]:
        return self.expected, one_of_family(self.fpr, self.keys_tried), self.mark_strength

    @property
    def conclusion(self) -> str:
        """The verdict in a few words, with the strength of the evidence or the power, and the rate.

        >>> Detector(key).detect("word").conclusion
        'too short (power 0 %, rate 1 %; 71 pairs needed)'
        """
        return conclusion(self)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        record = asdict(self)
        del record["mark_strength"]
        return {
            **record,
            "verdict": self.verdict.value,
            "strength": self.strength,
            "conclusion": self.conclusion,
            "power": self.power,
            "pairs_needed": self.pairs_needed,
            "expected_if_marked": self.expected_if_marked,
        }


@dataclass(frozen=True)
class TokenMark:
    """One token of an explained text: text[start:end], and how its pair was scored.

    A token's colour is that of the pair it ends. The first token, special tokens, and repeats of
    a pair under `unique` scoring are "not scored".
    """

    start: int
    end: int
    text: str
    mark: Mark


@dataclass(frozen=True)
class Span:
    """A stretch text[start:end] that carries the mark.

    Its p-value is the chance that text without the mark has *anywhere* a stretch as green.
    """

    start: int
    end: int
    pairs: int
    green: int
    p_value: float


class Detector:
    """Detects one key's watermark in texts or token ids.

    `marked_share` is the share of green pairs in texts that were marked as yours are, if it was
    measured: what is "too short" is decided by it (see `power.py`).

    >>> Detector(key).detect("A short text.").verdict.value
    'too short'
    """

    def __init__(
        self,
        source: Source,
        tokenizer: AnyTokenizer | None = None,
        *,
        fpr: float = 0.01,
        scoring: Scoring = "unique",
        marked_share: float | None = None,
    ) -> None:
        if not 0 < fpr < 1:
            raise InputError(f"the false-positive rate lies in (0, 1); got {fpr}")
        if scoring not in ("unique", "all"):
            raise InputError(f"scoring is 'unique' or 'all'; got {scoring!r}")
        source, self.tokenizer = resolve(source, tokenizer)
        if isinstance(source, WatermarkKey):
            source = HashedGreenList(source, self.tokenizer.vocab_size)
        self.identity: Identity = source.identity
        self.fpr = fpr
        self.scoring: Scoring = scoring
        self.mark_strength = mark_strength(marked_share, self.identity.gamma)
        self.green = source

    def detect(self, text: TextOrIds, prompt: TextOrIds | None = None) -> Detection:
        """Score one text, or the token ids of one.

        White space at the end of a text is left out; ids are scored as they are. The prompt is not
        scored; its last token is the left neighbour of the text's first.

        >>> Detector(key).detect([17, 40, 9], prompt=[30]).pairs
        3
        """
        return self._detections([text_ids(self.tokenizer, text, prompt)])[0]

    def detect_many(self, texts: Iterable[TextOrIds]) -> Iterator[Detection]:
        """Score a stream of texts in order, many at a time, in memory that does not grow with it.

        >>> [detection.pairs for detection in Detector(key).detect_many(["Two words", ""])]
        [1, 0]
        """
        check_several(texts)
        return (
            detection
            for batch in batches(prepared(self.tokenizer, text) for text in texts)
            for detection in self._detections(encode_all(self.tokenizer, batch))
        )

    def explain(self, text: str, prompt: TextOrIds | None = None) -> list[TokenMark]:
        """Return every token of a text, up to the white space at its end, with its colour.

        >>> [token.mark for token in Detector(key).explain("word")]
        ['not scored']
        """
        ids, offsets = self._encode_with_offsets(text)
        context = _context(self.tokenizer, prompt)
        scored, green = self._colours(np.concatenate([context, ids]), self.scoring)
        if not len(context):
            scored, green = np.insert(scored, 0, False), np.insert(green, 0, False)
        marks: list[Mark] = ["not scored", "red", "green"]
        chosen = (scored.astype(np.int64) * (1 + green)).tolist()
        return [
            TokenMark(start, end, text[start:end], marks[which])
            for (start, end), which in zip(offsets.tolist(), chosen, strict=False)
        ]

    def spans(self, text: str, *, fpr: float | None = None) -> list[Span]:
        """Return the stretches of a text that carry the mark, from left to right.

        Each has a p-value of at most `fpr` (else the detector's), corrected for every stretch.
        Repeated pairs count once whatever the scoring: the correction needs independent pairs.

        >>> Detector(key).spans("No stretch of this is marked.")
        []
        """
        ids, offsets = self._encode_with_offsets(text)
        scored, green = self._colours(ids, "unique")
        index = np.flatnonzero(scored)
        [share] = expected_shares(self.green, self.tokenizer, *joined([ids])).tolist()
        return [
            Span(
                int(offsets[index[segment.start], 0]),
                int(offsets[index[segment.end - 1] + 1, 1]),
                segment.end - segment.start,
                segment.green,
                segment.p_value,
            )
            for segment in best_segments(green[index], share, fpr or self.fpr)
        ]

    def colours(self, ids: Sequence[int] | Ids) -> tuple[Bools, Bools]:
        """Return for each pair of neighbours whether it is scored, and whether it is green.

        Element k is the pair of tokens k and k + 1. A special token, such as a mask that has yet to
        become a token, has no scored pair; under `unique` scoring only the first of equal pairs is
        scored.

        >>> scored, green = Detector(key).colours([17, 40, 17, 40])
        >>> scored.tolist()
        [True, True, False]
        """
        return self._colours(self.tokenizer.as_ids(ids), self.scoring)

    def _encode_with_offsets(self, text: str) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of what is scored of a text, and where in the text each token stands."""
        if not isinstance(text, str):
            raise InputError(f"give the text itself, as a string; got {type(text).__name__}")
        return self.tokenizer.encode_with_offsets(scored_text(text))

    def _detections(self, texts: Sequence[Ids]) -> list[Detection]:
        """Score several sequences of ids at once."""
        ids, lengths = joined(texts)
        unique = self.scoring == "unique"
        [green], pairs = count_pairs([self.green], self.tokenizer, ids, lengths, unique=unique)
        expected = self.expected_shares(ids, lengths)
        p_value = binomial_tail(green, pairs, expected)
        needed = pairs_needed(expected, self.fpr, self.mark_strength)
        scores = zip(
            verdicts(p_value, pairs < needed, self.fpr).tolist(),
            z_score(green, pairs, self.identity.gamma).tolist(),
            p_value.tolist(),
            pairs.tolist(),
            green.tolist(),
            expected.tolist(),
            strict=True,
        )
        return [self.conclude(*score) for score in scores]

    def expected_shares(self, ids: Ids, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of green pairs that each text is tested against.

        Under `all` scoring it is γ, as in the paper.
        """
        if self.scoring == "all":
            return np.full(len(lengths), self.identity.gamma)
        return expected_shares(self.green, self.tokenizer, ids, lengths)

    def conclude(
        self, verdict: str, z: float, p_value: float, pairs: int, green: int, expected: float,
        tried: int = 1,
    ) -> Detection:  # fmt: skip
        """Return a detection by this key with these scores."""
        identity = self.identity
        return Detection(
            Verdict(verdict), z, p_value, pairs, green, identity.gamma, expected, self.fpr,
            self.scoring, identity.key_id, identity.scheme, self.mark_strength, tried,
        )  # fmt: skip

    def _colours(self, ids: Ids, scoring: Scoring) -> tuple[Bools, Bools]:
        left, right = ids[:-1], ids[1:]
        scored = self.tokenizer.scored[left] & self.tokenizer.scored[right]
        if scoring == "unique":
            _, first = np.unique(left * self.tokenizer.vocab_size + right, return_index=True)
            repeated = np.ones(len(left), dtype=np.bool_)
            repeated[first] = False
            scored &= ~repeated
        return scored, self.green.pairs(left, right)


def scored_text(text: str) -> str:
    r"""Return a text without the white space at its end, which is never scored.

    Shells, editors and forms add a line end there, or take one away, and nobody sees it.

    >>> scored_text("A text from a file.\n")
    'A text from a file.'
    """
    return text.rstrip()


def prepared(tokenizer: Tokenizer, text: TextOrIds) -> str | Ids:
    """Return what is scored of a text, or ids, checked."""
    return scored_text(text) if isinstance(text, str) else tokenizer.as_ids(text)


def encode_all(tokenizer: Tokenizer, texts: Sequence[str | Ids]) -> list[Ids]:
    """Return the ids of each text; ids stay as they are."""
    encoded = iter(tokenizer.encode_many([one for one in texts if isinstance(one, str)]))
    return [next(encoded) if isinstance(text, str) else text for text in texts]


def text_ids(tokenizer: Tokenizer, text: TextOrIds, prompt: TextOrIds | None = None) -> Ids:
    """Return the ids that are scored of a text, behind the last of its prompt."""
    [ids] = encode_all(tokenizer, [prepared(tokenizer, text)])
    return np.concatenate([_context(tokenizer, prompt), ids])


def _context(tokenizer: Tokenizer, prompt: TextOrIds | None) -> Ids:
    """Return the last token of a prompt; white space at its end stands before the text."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)[-1:]
    return tokenizer.as_ids([] if prompt is None else prompt)[-1:]


def joined(texts: Sequence[Ids]) -> tuple[Ids, NDArray[np.int64]]:
    """Return the ids of texts, one text behind the other, and how many each has."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return np.concatenate([np.zeros(0, dtype=np.int64), *texts]), lengths


def check_several(texts: object) -> None:
    """Raise `InputError` for one text in place of several: its letters would be scored."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InputError("texts is a list of texts: put a single one in [ ]")


def verdicts(p_value: ArrayLike, short: ArrayLike, fpr: ArrayLike) -> NDArray[np.object_]:
    """Conclude from p-values, and whether the texts are too short for a miss to mean something.

    >>> verdicts([0.001, 0.5, 0.5], [True, False, True], 0.01).tolist()
    ['watermarked', 'not detected', 'too short']
    """
    missed = np.where(short, Verdict.TOO_SHORT.value, Verdict.NOT_DETECTED.value)
    hit = np.asarray(p_value) <= np.asarray(fpr)
    return np.where(hit, Verdict.WATERMARKED.value, missed).astype(np.object_)


def batches(texts: Iterable[Prepared]) -> Iterator[list[Prepared]]:
    """Group a stream into batches that are small in number and in size."""
    batch: list[Prepared] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if len(batch) >= BATCH_TEXTS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
