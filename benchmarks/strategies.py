"""How well each strategy is detected on a model: the order of the paper's Table 1, in one table.

Usage: dllmark reproduce table1 --delta 1 --c4 c4.jsonl --out RESULTS, then
       python benchmarks/strategies.py RESULTS --delta 1 [--prompts C4] [--out DIR]

Reads the texts that `reproduce` wrote, all of them: short and repetitive ones are not left out. The
thresholds come from the unmarked texts. Also reports the share of tokens whose left neighbour was
known when they were chosen, and what decoding a text and tokenising it again changes.
"""

from __future__ import annotations

import argparse
import json
from difflib import Match, SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from dllmark import Detector, WatermarkKey, load_tokenizer
from dllmark.detection.stats import share_interval, threshold
from dllmark.experiments.paper import DELTA
from dllmark.experiments.runs import Runs, summary
from dllmark.experiments.settings import RATES, Setting
from dllmark.marking.strategies import BIASES
from dllmark.quality.repetition import repeated_ngrams


def scores(detector: Detector, texts: list[dict[str, Any]], length: int) -> np.ndarray:
    """Return z of the first tokens of each text."""
    detections = detector.detect_many(t["ids"][:length] for t in texts)
    return np.array([detection.z for detection in detections])


def repeated(texts: list[dict[str, Any]]) -> float:
    """Return the mean share of bigrams that stood in their text before."""
    return float(np.mean([repeated_ngrams(text["ids"]) for text in texts]))


def aligned(before: list[int], after: list[int]) -> list[Match]:
    """Return the stretches that two rows of ids share."""
    return SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()


def retokenised(detector: Detector, texts: list[dict[str, Any]]) -> dict[str, float]:
    """Return the share of texts and ids that change when text is decoded and tokenised again.

    The two rows of ids are aligned: an id counts as changed if it has no partner of its own kind.
    """
    again = detector.tokenizer.encode_many([text["text"] for text in texts])
    changed = [
        1 - sum(block.size for block in aligned(text["ids"], ids.tolist())) / len(text["ids"])
        for text, ids in zip(texts, again, strict=True)
        if text["ids"]
    ]
    z = [detector.detect(text["ids"]).z - detector.detect(text["text"]).z for text in texts]
    return {
        "texts changed": float(np.mean([share > 0 for share in changed])),
        "ids changed": float(np.mean(changed)),
        "mean change of z": float(np.mean(z)),
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Score the texts of every strategy."""
    tokenizer = load_tokenizer(arguments.model)
    detector = Detector(WatermarkKey.load(arguments.results / "keys" / "gamma-0.5.key"), tokenizer)
    notes = Runs(arguments.results / "runs.jsonl")

    def file(setting: Setting) -> Path:
        path: Path = arguments.results / "texts" / arguments.prompts / f"{setting.slug}.jsonl"
        return path

    def read(setting: Setting) -> list[dict[str, Any]]:
        return [json.loads(line) for line in file(setting).read_text(encoding="utf-8").splitlines()]

    plain = read(Setting(None))
    null = scores(detector, plain, arguments.scored)
    limits = {rate: threshold(null, rate) for rate in RATES}
    rows: dict[str, Any] = {}
    marked = {name: Setting(name, delta=arguments.delta) for name in BIASES}
    for name, setting in marked.items():
        if not file(setting).exists():  # written before there was that strategy
            continue
        texts = read(setting)
        z = scores(detector, texts, arguments.scored)
        hits = {rate: int((z > limit.value).sum()) for rate, limit in limits.items()}
        rows[name] = {
            "texts": len(texts),
            "mean z": float(z.mean()),
            "repeated bigrams": repeated(texts),
            "left neighbour known": float(np.mean([text["known_left"] for text in texts])),
            **{f"TPR at {100 * rate:g} % FPR": vars(share_interval(hit, len(z)))
               for rate, hit in hits.items()},
            "tokenised again": retokenised(detector, texts),
        }  # fmt: skip
    slugs = {setting.slug for setting in (Setting(None), *marked.values())}
    return {
        "texts": summary([one for one in notes.notes
                          if one.prompts == arguments.prompts and one.setting in slugs]),
        "scored": arguments.scored,
        "δ": arguments.delta,
        "unmarked": {"mean z": float(null.mean()), "sd z": float(null.std()),
                     "repeated bigrams": repeated(plain),
                     "thresholds": {str(rate): limit.value for rate, limit in limits.items()}},
        "strategies": rows,
    }  # fmt: skip


def percent(interval: dict[str, float]) -> str:
    """Return a share and its interval in per cent."""
    share, low, high = (100 * interval[name] for name in ("share", "low", "high"))
    return f"{share:.1f} ({low:.0f}-{high:.0f})"


def table(result: dict[str, Any]) -> str:
    """Return the result as a Markdown table."""
    rates = [f"TPR at {100 * rate:g} % FPR" for rate in RATES]
    lines = [
        f"| strategy | mean z | left known | {' | '.join(rates)} | ids changed | z changed |",
        "| --- | --- | --- |" + " --- |" * (len(rates) + 2),
    ]
    for name, row in result["strategies"].items():
        cells = [percent(row[rate]) for rate in rates]
        known = f"{100 * row['left neighbour known']:.0f} %"
        again = row["tokenised again"]
        cells += [
            f"{100 * again['ids changed']:.2f} %",
            f"{again['mean change of z']:.3f}",
        ]
        lines.append(f"| {name} | {row['mean z']:.2f} | {known} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the folder of `dllmark reproduce table1`")
    parser.add_argument("--prompts", choices=("C4", "ELI5"), default="C4")
    parser.add_argument("--model", default="embedded", help="whose tokenizer the texts have")
    parser.add_argument("--delta", type=float, default=DELTA, help="of the texts")
    parser.add_argument("--scored", type=int, default=200, help="tokens scored of each text")
    parser.add_argument("--out", type=Path, help="a folder for strategies.json and strategies.md")
    arguments = parser.parse_args()
    result = measure(arguments)
    page = f"{result['texts']}\n\n{table(result)}\n"
    print(page)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "strategies.json").write_text(json.dumps(result, indent=1) + "\n")
        (arguments.out / "strategies.md").write_text(page)


if __name__ == "__main__":
    main()
