"""Write the common pairs of words that detection expects in text that carries no mark.

Usage: python training/common_pairs.py KIND=FILE [KIND=FILE ...] -o common_pairs.json [--pairs 1000]

A FILE is JSONL (also .xz) with "text" in each line, or a folder of Python source. Texts are cut
into passages of about 200 tokens; a pair counts once in a passage, as detection counts it, and
every kind of text weighs the same. Every second passage has single line ends, since sources differ
in that and not in much else. A pair is two units of text that follow each other: a word with
the space before it, a digit, or the run of other characters between two of these. Units are no
tokens, so that the list serves any tokenizer.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

LETTER = r"[^\W\d_]"
UNIT = re.compile(
    rf"(?:(?<={LETTER})['’]| ?){LETTER}+"  # a word, or the end of a contraction
    r"| ?\d"
    rf"|(?:(?! ?[^\W_]|(?<={LETTER})['’]{LETTER})[\s\S])+"
)
PASSAGE = 900
PASSAGES_A_TEXT = 6
PASSAGES_A_KIND = 5000

Pairs = Counter[tuple[str, str]]


def texts(source: Path) -> Iterator[str]:
    """Yield the texts of a file, or the Python source in a folder."""
    if source.is_dir():
        for path in sorted(source.rglob("*.py")):
            if not {"site-packages", "test", "tests", "idlelib"} & set(path.parts):
                yield path.read_text(encoding="utf-8", errors="ignore")
        return
    with (lzma.open if source.suffix == ".xz" else open)(source, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def shares(source: Path) -> Pairs:
    """Return in which share of the passages each pair is."""
    passages = [
        text[start : start + PASSAGE]
        for text in texts(source)
        for start in range(0, len(text) - PASSAGE + 1, PASSAGE)[:PASSAGES_A_TEXT]
    ]
    random.Random(0).shuffle(passages)
    passages = passages[:PASSAGES_A_KIND]
    passages[::2] = [passage.replace("\n\n", "\n") for passage in passages[::2]]
    counts: Pairs = Counter()
    for passage in passages:
        counts.update(set(pairwise(UNIT.findall(passage))))
    print(f"{source.name}: {len(passages)} passages, {len(counts)} pairs")
    return Counter({pair: count / len(passages) for pair, count in counts.items()})


def main() -> None:
    """Count, and write the commonest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", help="KIND=FILE")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=1000)
    arguments = parser.parse_args()
    total: Pairs = Counter()
    for kind in arguments.kinds:
        total.update(shares(Path(kind.split("=", 1)[1])))
    scale = 1000 / len(arguments.kinds)
    lefts: Counter[str] = Counter()
    for (left, _), share in total.items():
        lefts[left] += share
    common: dict[str, dict[str, int]] = {}
    for (left, right), share in total.most_common(arguments.pairs):
        common.setdefault(left, {})[right] = round(scale * share)
    record = {
        "kinds": [kind.split("=", 1)[0] for kind in arguments.kinds],
        "passages": 1000,
        "pairs": round(scale * sum(total.values())),
        "lefts": {left: round(scale * lefts[left]) for left in common},
        "common": common,
    }
    arguments.output.write_text(
        json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
