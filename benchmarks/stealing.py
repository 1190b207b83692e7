"""How many marked texts does a thief need? Curves of forging and scrubbing, and what defends.

Usage: python benchmarks/stealing.py PART --corpus texts.jsonl.xz --own other.jsonl.xz --out DIR

PART is neighbours, unigram, lag-2 or two-before (the curves of one relation), limit, lengths or
confirm; each writes DIR/PART.json. `check` compares the simulation with a model's texts (--marked
texts.jsonl --key my.key). benchmarks/stealing_report.py makes tables and plots of them.

Marked text is simulated. A text follows the trigrams of --corpus, and each token is one of 16 drawn
ones, chosen with the bias --delta on green pairs: about as certain and about as green as the
embedded model's text. The thief knows neither key nor colours, but has 10,000 unmarked texts of the
same trigrams. A forger on its own subject writes by the trigrams of --own, one on the same subject
by those of --corpus. Nothing here asks a detector: the forger takes what it wrote first.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dllmark import Detector, WatermarkKey, load_tokenizer
from dllmark.attacks.forge import STRENGTH
from dllmark.attacks.ngrams import NGrams
from dllmark.attacks.scrub import scrub_by
from dllmark.attacks.steal import Counts, Estimates, count, count_texts, estimate
from dllmark.detection.stats import binomial_tail
from dllmark.relation.greenlist import Bools, HashedGreenList
from dllmark.relation.tokenizer import Ids
from dllmark.terminal import progress_bar

TOKENIZER = load_tokenizer("embedded")
V = TOKENIZER.vocab_size
GAMMA = 0.5
TOKENS = 200
UNMARKED = 10_000
FORGED, SCRUBBED = 200, 40
RATES = (1e-2, 1e-4, 1e-6)
RATIOS = (0.1, 0.2)
SIZES = (0, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
FEW = 1000
SCRUB_SIZES = (0, 10, 100, 1000, 10_000, 100_000)
KEYS = 3


@dataclass(frozen=True)
class Relation:
    """What a colour depends on: a token and its context, within `reach` tokens."""

    reach: int
    of: Callable[[Ids], tuple[Ids, Ids]]


RELATIONS = {
    "neighbours": Relation(1, lambda x: (x[:, :-1], x[:, 1:])),
    "unigram": Relation(0, lambda x: (x * 0, x)),
    "lag-2": Relation(2, lambda x: (x[:, :-2], x[:, 2:])),
    "two-before": Relation(2, lambda x: (x[:, :-2] * V + x[:, 1:-1], x[:, 2:])),
}
OURS = RELATIONS["neighbours"]


class Colours:
    """Half of all pairs, by a mixer that is weaker than SipHash and ten times as fast."""

    def __init__(self, number: int) -> None:
        self._key = np.uint64(number * 2 + 1)
        self._factor = np.uint64(0xBF58476D1CE4E5B9 * (number * 2 + 1) % 2**64)

    def pairs(self, context: Ids, token: Ids) -> Bools:
        """Return the colour of each pair (True is green); the two sides broadcast."""
        x = (context * V + token).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + self._key
        x ^= x >> np.uint64(31)
        x *= self._factor
        x ^= x >> np.uint64(29)
        x *= np.uint64(0x94D049BB133111EB)
        return x >> np.uint64(63) == 0


Green = Colours | HashedGreenList


Weigh = Callable[[Ids, Ids], np.ndarray]


def bias(relation: Relation, weigh: Weigh) -> Callable[[Ids, Ids], np.ndarray]:
    """Return the lean of candidates by a weight on each (context, token)."""

    def lean(written: Ids, candidates: Ids) -> np.ndarray:
        last = written[:, -max(relation.reach, 1) :]
        if last.shape[1] < relation.reach:
            return np.zeros(candidates.shape)
        context, _ = relation.of(np.concatenate([last, last[:, :1]], axis=1))
        return weigh(context[:, -1:], candidates)

    return lean


def judge(texts: Ids, relation: Relation, green: Green) -> tuple[Ids, Ids, np.ndarray]:
    """Return pairs, green pairs and p-value of each text, each distinct pair once."""
    context, token = relation.of(texts)
    code = np.sort(context * V + token, axis=1)
    first = np.diff(code, axis=1, prepend=-1) != 0
    is_green = green.pairs(code // V, code % V) & first
    pairs, hits = first.sum(axis=1), is_green.sum(axis=1)
    return pairs, hits, binomial_tail(hits, pairs, GAMMA)


def counts(texts: Ids, relation: Relation) -> Counts:
    """Count the pairs of texts as a thief does."""
    context, token = relation.of(texts)
    text = np.repeat(np.arange(len(texts)), token.shape[1])
    return count(context.ravel(), token.ravel(), text, V)


class World:
    """The corpora as tables, and the unmarked texts a thief has."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.delta = options.delta
        corpus = read(options.corpus, options.tokens)
        self.table = NGrams(corpus, V, 2)
        self.words = NGrams(corpus, V, 1)
        self.own = NGrams(read(options.own, options.tokens // 2), V, 2)
        self.rng = np.random.default_rng(options.seed)
        self.unmarked, _ = self.table.write(UNMARKED, TOKENS, self.rng)

    def marked(self, texts: int, relation: Relation, green: Green, length: int = TOKENS) -> Ids:
        """Return simulated texts under a key."""
        lean = bias(relation, lambda context, token: self.delta * green.pairs(context, token))
        batches = [
            self.table.write(min(2000, texts - start), length, self.rng, lean)[0]
            for start in range(0, texts, 2000)
        ]
        return np.concatenate([np.zeros((0, length), dtype=np.int64), *batches])

    def forged(
        self, estimates: Estimates, relation: Relation, table: NGrams, length: int = TOKENS
    ) -> Ids:
        """Return what a forger writes with its estimates."""
        lean = bias(relation, lambda context, token: STRENGTH * estimates.lean(context, token))
        return table.write(FORGED, length, self.rng, lean)[0]


def read(path: Path, tokens: int) -> list[Ids]:
    """Return the first texts of a corpus as ids, until there are so many tokens."""
    texts: list[Ids] = []
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        while tokens > 0 and (lines := [line for _, line in zip(range(200), file, strict=False)]):
            new = TOKENIZER.encode_many([json.loads(line)["text"] for line in lines])
            texts += new
            tokens -= sum(map(len, new))
    return texts


def accepted(p_values: np.ndarray) -> dict[str, float]:
    """Return the share of texts at or below each rate."""
    return {f"{rate:g}": float(np.mean(p_values <= rate)) for rate in RATES}


def thief(marked: Ids, relation: Relation, base: Counts) -> Estimates:
    """Return what a thief makes of some marked texts."""
    if not len(marked):
        return Estimates(np.zeros(0, dtype=np.int64), np.zeros(0), V)
    return estimate(counts(marked, relation), base)


def curves(relation: Relation, world: World, most: int) -> Iterable[dict[str, Any]]:
    """Yield what a thief can do with N texts."""
    base = counts(world.unmarked, relation)
    for key in range(KEYS):
        green = Colours(key)
        texts = world.marked(most if key == 0 else FEW, relation, green)
        fresh = world.marked(FORGED, relation, green)
        judged = judge(fresh, relation, green)
        for size in (size for size in SIZES if size <= len(texts)):
            estimates = thief(texts[:size], relation, base)
            row = {
                "key": key, "texts": size, "green share of marked": share(judged),
                "marked": accepted(judged[2]),
            }  # fmt: skip
            for name, table in (("own", world.own), ("same", world.table)):
                forged = world.forged(estimates, relation, table)
                row[name] = accepted(judge(forged, relation, green)[2])
            if key == 0 and size in SCRUB_SIZES:
                row["scrubbed"] = scrubbed(world, fresh[:SCRUBBED], relation, green, estimates)
            yield row


def scrubbed(
    world: World, texts: Ids, relation: Relation, green: Green, estimates: Estimates
) -> dict[str, Any]:
    """Return for each ratio which share of texts is not detected at 1 %, and what changed."""

    def greenness(stretch: Ids) -> np.ndarray:
        context, token = relation.of(stretch)
        return estimates.lean(context, token).sum(axis=1)

    result = {}
    for ratio in RATIOS:
        new = np.stack([
            scrub_by(text, ratio, greenness, world.words, world.rng, relation.reach)
            for text in texts
        ])  # fmt: skip
        p_values = judge(new, relation, green)[2]
        result[f"{ratio:g}"] = {
            "removed": float(np.mean(p_values > 0.01)), "changed": float(np.mean(new != texts)),
        }  # fmt: skip
    return result


def limit(world: World, most: int) -> Iterable[dict[str, Any]]:
    """Yield how many forgeries pass from few texts of our relation, over 10 keys."""
    relation = OURS
    base = counts(world.unmarked, relation)
    for key in range(10):
        green = Colours(100 + key)
        texts = world.marked(min(30, most), relation, green)
        for size in (3, 5, 10, 15, 20, 30):
            estimates = thief(texts[:size], relation, base)
            row: dict[str, Any] = {"key": key, "texts": size}
            for name, table in (("own", world.own), ("same", world.table)):
                forged = world.forged(estimates, relation, table)
                row[name] = accepted(judge(forged, relation, green)[2])
            yield row


def lengths(world: World, most: int) -> Iterable[dict[str, Any]]:
    """Yield what stricter rates keep out, and what they lose, for forged texts of each length."""
    relation, green = OURS, Colours(0)
    base = counts(world.unmarked, relation)
    texts = world.marked(min(1000, most), relation, green)
    for length in (50, 100, 200, 400):
        row = {"length": length}
        genuine = world.marked(FORGED, relation, green, length)
        row["marked"] = accepted(judge(genuine, relation, green)[2])
        for size in (10, 30, 100, 1000):
            estimates = thief(texts[:size], relation, base)
            forged = world.forged(estimates, relation, world.own, length)
            row[f"forged from {size}"] = accepted(judge(forged, relation, green)[2])
        yield row


def confirm(world: World, most: int) -> Iterable[dict[str, Any]]:
    """Yield what a second relation, at lag 2 under a key of its own, tells apart and costs."""
    first, second = OURS, RELATIONS["lag-2"]
    green, other = Colours(0), Colours(1)
    bases = counts(world.unmarked, first), counts(world.unmarked, second)
    on_first = bias(first, green.pairs)
    for extra in (0.0, 0.5, 1.0, 1.5):
        on_second = bias(second, lambda c, t, extra=extra: extra * other.pairs(c, t))

        def both(written: Ids, candidates: Ids, second: Any = on_second) -> np.ndarray:
            return world.delta * on_first(written, candidates) + second(written, candidates)

        texts, chances = world.table.write(min(1000, most) + FORGED, TOKENS, world.rng, both)
        genuine, texts = texts[:FORGED], texts[FORGED:]

        def passed(new: Ids) -> dict[str, float]:
            at_first = judge(new, first, green)[2] <= 1e-6
            confirmed = at_first & (judge(new, second, other)[2] <= 0.01)
            return {"at 1e-6": float(at_first.mean()), "confirmed": float(confirmed.mean())}

        row: dict[str, Any] = {
            "extra bias": extra, "perplexity": float(np.exp(-chances[:, 1:].mean())),
            "marked": passed(genuine),
        }  # fmt: skip
        for size in (30, 100, 1000):
            known = [
                bias(relation, thief(texts[:size], relation, base).lean)
                for relation, base in zip((first, second), bases, strict=True)
            ]
            for name, steals in (("one", known[:1]), ("both", known)):

                def stolen(written: Ids, candidates: Ids, steals: Any = steals) -> np.ndarray:
                    return STRENGTH * sum(lean(written, candidates) for lean in steals)

                forged, _ = world.own.write(FORGED, TOKENS, world.rng, stolen)
                row[f"forged from {size}, {name}"] = passed(forged)
        yield row


def check(world: World, options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """Yield the same figures for a model's marked texts and for as many simulated ones."""
    relation = OURS
    key = WatermarkKey.load(options.key)
    green = HashedGreenList(key, V)
    detector = Detector(key)
    lines = options.marked.read_text(encoding="utf-8").splitlines()
    real = TOKENIZER.encode_many([json.loads(line)["text"] for line in lines])
    length = round(np.mean([len(ids) for ids in real]))
    simulated = list(world.marked(len(real), relation, green, length))
    base = counts(world.unmarked, relation)
    for name, texts in (("model", real), ("simulation", simulated)):
        found = list(detector.detect_many(texts))
        for size in (len(texts) // 2, len(texts)):
            estimates = estimate(count_texts(texts[:size], TOKENIZER), base)
            row: dict[str, Any] = {
                "texts of": name, "texts": size, "tokens": length,
                "distinct pairs": float(np.mean([one.pairs for one in found])),
                "green share": sum(one.green for one in found) / sum(one.pairs for one in found),
            }  # fmt: skip
            for kind, table in (("own", world.own), ("same", world.table)):
                forged = world.forged(estimates, relation, table)
                judged = judge(forged, relation, green)
                row[kind] = {**accepted(judged[2]), "green share": share(judged)}
            yield row


def share(judged: tuple[Ids, Ids, np.ndarray]) -> float:
    """Return which share of all pairs is green."""
    return float(judged[1].sum() / judged[0].sum())


PARTS: dict[str, Callable[[World, int], Iterable[dict[str, Any]]]] = {
    **{name: partial(curves, relation) for name, relation in RELATIONS.items()},
    "limit": limit,
    "lengths": lengths,
    "confirm": confirm,
}


def main() -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "check"])
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--own", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--marked", type=Path)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--tokens", type=int, default=8_000_000, help="of the corpus")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="marked texts")
    parser.add_argument("--delta", type=float, default=2.5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    world = World(options)
    found = check(world, options) if options.part == "check" else None
    rows = []
    with progress_bar() as bar:
        task = bar.add_task(options.part, total=None)
        for row in found or PARTS[options.part](world, options.most):
            rows.append(row)
            print(json.dumps(row), flush=True)
            bar.advance(task)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.part}.json"
    path.write_text(json.dumps({"delta": options.delta, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
