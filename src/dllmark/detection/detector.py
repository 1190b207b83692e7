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
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dllmark.detection.expected import expected_shares
from dllmark.detection.spans import best_segments
from dllmark.detection.stats import binomial_tail, z_score
from dllmark.errors import InputError
from dllmark.relation.greenlist import GreenList, HashedGreenList, colours
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
    """What a detection concludes. "watermarked" means consistent with the key, not authorship."""

    WATERMARKED = "watermarked"
    NOT_DETECTED = "not detected"
    TOO_SHORT = "too short"


@dataclass(frozen=True)
class Detection:
    """The evidence in one text, and the verdict at a false-positive rate.

    `expected` is the share of green pairs that the p-value is tested against: γ, or more where the
    key happens to colour the common pairs of such a text green (see `expected.py`).
    "too short" means that even a text with nothing but green pairs could not reach that rate.
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
    keys_tried: int = 1

    @property
    def green_fraction(self) -> float:
        """The share of scored pairs that are green (0 where none was scored)."""
        return self.green / self.pairs if self.pairs else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {**asdict(self), "verdict": self.verdict.value}


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
        [green], pairs = count_pairs([self.green], self.tokenizer, ids, lengths, self.scoring)
        expected = self.expected_shares(ids, lengths)
        p_value = binomial_tail(green, pairs, expected)
        scores = zip(
            verdicts(p_value, expected**pairs, self.fpr).tolist(),
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
            self.scoring, identity.key_id, identity.scheme, tried,
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


def count_pairs(
    lists: Sequence[GreenList],
    tokenizer: Tokenizer,
    ids: Ids,
    lengths: NDArray[np.int64],
    scoring: Scoring = "unique",
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each green list the green pairs of each text, and the pairs of each text.

    The texts stand one behind the other in `ids`.

    >>> tokenizer, ids = Detector(key).tokenizer, np.arange(100, 109)
    >>> count_pairs([HashedGreenList(key, 16384)], tokenizer, ids, np.array([4, 5]))[1]
    array([3, 4])
    """
    count = len(lengths)
    text = np.repeat(np.arange(count), lengths)
    left, right = ids[:-1], ids[1:]
    usable = tokenizer.scored[left] & tokenizer.scored[right]
    usable &= text[:-1] == text[1:]
    left, right, text = left[usable], right[usable], text[1:][usable]
    which: slice | NDArray[np.int64] = slice(None)
    if scoring == "unique":
        # One sort brings the repeats within a text together, and also those between texts: every
        # pair is coloured once for all texts. `np.unique` takes far longer than sorting.
        bits, low = tokenizer.vocab_size.bit_length(), count.bit_length()
        code = np.sort((((left << bits) | right) << low) | text)
        code = code[_first_of_run(code)]
        text, pair = code & ((1 << low) - 1), code >> low
        first = _first_of_run(pair)
        which = np.cumsum(first) - 1
        pair = pair[first]
        left, right = pair >> bits, pair & ((1 << bits) - 1)
    green = np.empty((len(lists), count), dtype=np.int64)
    for counted, coloured in zip(green, colours(lists, left, right), strict=True):
        counted[:] = np.bincount(text[coloured[which]], minlength=count)
    return green, np.bincount(text, minlength=count)


def _first_of_run(ordered: NDArray[np.int64]) -> Bools:
    """Return where a value differs from the one before it."""
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def check_several(texts: object) -> None:
    """Raise `InputError` for one text in place of several: its letters would be scored."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InputError("texts is a list of texts: put a single one in [ ]")


def verdicts(p_value: ArrayLike, least: ArrayLike, fpr: ArrayLike) -> NDArray[np.object_]:
    """Conclude from p-values and the least that texts of this length could have had.

    >>> verdicts([0.001, 0.5, 0.5], [0.001, 0.001, 0.5], 0.01).tolist()
    ['watermarked', 'not detected', 'too short']
    """
    p_value, least, fpr = np.asarray(p_value), np.asarray(least), np.asarray(fpr)
    found = np.where(least > fpr, Verdict.TOO_SHORT.value, Verdict.NOT_DETECTED.value)
    return np.where(p_value <= fpr, Verdict.WATERMARKED.value, found).astype(np.object_)


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
