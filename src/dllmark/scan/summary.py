"""What a finished scan says as a whole, computed from its rows."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dllmark.detection.words import strength
from dllmark.files import atomic_write, reading, writing
from dllmark.scan.rule import Rule

BINS = 20
DECADES = 30
"""p-values below 1e-30 share the last bin."""


def summarise(rows: Sequence[Path], errors: Path, rule: Rule, hits: Path) -> dict[str, Any]:
    """Return the counts of a scan as JSON values, and write its hits to a CSV file.

    The rows are read twice: which documents are hits depends on all of them. In memory are one file
    of rows at a time, and the p-values up to the rule's rate.
    """
    documents: Counter[str | None] = Counter()
    too_short = 0
    linear, decades = np.zeros(BINS, dtype=np.int64), np.zeros(DECADES, dtype=np.int64)
    small = [np.zeros(0)]
    for path in rows:
        table = pq.read_table(path, columns=["path", "too_short", "p_value"])
        for entry in pc.value_counts(table["path"]).to_pylist():
            documents[entry["values"]] += entry["counts"]
        too_short += pc.sum(table["too_short"]).as_py() or 0
        p_values = table["p_value"].to_numpy()
        linear += np.histogram(p_values, BINS, (0, 1))[0]
        digits = -np.log10(np.maximum(p_values, 10.0 ** (0.5 - DECADES)))
        decades += np.histogram(digits, DECADES, (0, DECADES))[0]
        small.append(p_values[p_values <= rule.rate])
    largest = rule.largest_p_value(np.concatenate(small), documents.total())
    counts = _write_hits(rows, largest, hits)
    found, by_payload = counts["path"].total(), counts.get("payload")
    return {
        "documents": documents.total(),
        "watermarked": found,
        "not_detected": documents.total() - too_short - found,
        "too_short": too_short,
        "errors": _count_lines(errors),
        rule.name: rule.rate,
        "largest_p_value": largest,
        "expected_false_hits": rule.expected_false(found, documents.total()),
        "watermarked_by_strength": dict(sorted(counts["strength"].items())),
        "watermarked_by_key": dict(sorted(counts["key_id"].items())),
        **({} if by_payload is None else {"watermarked_by_payload": _by_payload(by_payload)}),
        "files": len(documents),
        "watermarked_by_file": _hits_by_file(counts["path"], documents),
        "p_values": {"width_0.05": linear.tolist(), "by_decade": decades.tolist()},
    }


def _write_hits(
    rows: Sequence[Path], largest: float | None, to: Path
) -> dict[str, Counter[str | None]]:
    """Write the hits in the order of the corpus; return how many there are, by some columns."""
    counts: dict[str, Counter[str | None]] = {
        name: Counter() for name in ("path", "key_id", "strength")
    }
    bound = -1.0 if largest is None else largest
    with writing(to), atomic_write(to) as file:
        wrapper = TextIOWrapper(file, "utf-8", newline="")
        lines = csv.writer(wrapper, lineterminator="\n")
        for path in rows:
            columns = [name for name in pq.read_schema(path).names if name != "too_short"]
            if path == rows[0]:
                lines.writerow(columns)
            found = pq.read_table(path, columns=columns, filters=[("p_value", "<=", bound)])
            values = {name: found[name].to_pylist() for name in columns}
            lines.writerows(zip(*values.values(), strict=True))
            values["strength"] = [strength(p) for p in values["p_value"]]
            if "payload" in values:
                counts.setdefault("payload", Counter())
            for name, count in counts.items():
                count.update(values[name])
        wrapper.detach()
    return counts


def read_hits(path: Path) -> Iterator[dict[str, str]]:
    """Yield the hits of a finished scan, each as what its columns say.

    >>> for hit in read_hits(Path("results/hits.csv")):  # doctest: +SKIP
    ...     print(hit["path"], hit["row"], hit["p_value"])
    """
    with reading(path), path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _hits_by_file(
    hits: Counter[str | None], documents: Counter[str | None]
) -> list[dict[str, Any]]:
    """Return the files with hits, those with most hits first."""
    records = [
        {"path": path, "documents": documents[path], "watermarked": found,
         "rate": found / documents[path]}
        for path, found in hits.items()
    ]  # fmt: skip
    return sorted(records, key=lambda record: (-record["watermarked"], record["path"]))


def _by_payload(hits: Counter[str | None]) -> list[dict[str, Any]]:
    """Return the payloads of marked texts, those with most texts first; null is an unclear one."""
    return [
        {"payload": payload, "watermarked": count}
        for payload, count in sorted(
            hits.items(), key=lambda item: (-item[1], item[0] is None, item[0] or "")
        )
    ]


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))


def as_text(summary: dict[str, Any]) -> str:
    """Return a summary for people, in Markdown."""
    lines = [
        "# Scan",
        "",
        f"- documents: {summary['documents']:,} in {summary['files']:,} files",
        f"- watermarked: {summary['watermarked']:,}"
        + ", listed in hits.csv" * (summary["watermarked"] > 0),
        f"- not detected: {summary['not_detected']:,}",
        f"- not detected, and too short for a miss to mean something: {summary['too_short']:,}",
        f"- not readable: {summary['errors']:,}" + ", see errors.jsonl" * (summary["errors"] > 0),
        "",
        _in_words(summary),
    ]
    if strengths := summary["watermarked_by_strength"]:
        shown = ", ".join(f"{count:,} {name}" for name, count in strengths.items())
        lines.insert(4, f"- the evidence of those: {shown}")
    if summary["watermarked"]:
        lines += ["", "| watermarked | of | rate | file |", "| ---: | ---: | ---: | --- |"]
        for file in summary["watermarked_by_file"][:20]:
            path = file["path"].replace("|", "\\|").replace("\n", " ")
            rate = f"{100 * file['rate']:.2f} %"
            lines.append(f"| {file['watermarked']:,} | {file['documents']:,} | {rate} | {path} |")
        if (more := len(summary["watermarked_by_file"]) - 20) > 0:
            lines += ["", f"{more:,} more files with hits are in summary.json."]
        if "watermarked_by_payload" in summary:
            lines += ["", "| watermarked | payload |", "| ---: | --- |"]
            for hit in summary["watermarked_by_payload"][:20]:
                payload = (
                    "unclear" if hit["payload"] is None else hit["payload"].replace("|", "\\|")
                )
                lines.append(f"| {hit['watermarked']:,} | {payload} |")
        elif len(summary["watermarked_by_key"]) > 1:
            lines += ["", "| watermarked | key |", "| ---: | --- |"]
            lines += [f"| {n:,} | {key} |" for key, n in summary["watermarked_by_key"].items()]
    return "\n".join(lines) + "\n"


def _in_words(summary: dict[str, Any]) -> str:
    """Return what the rate of a scan means for its hits."""
    expected = f"{summary['expected_false_hits']:.3g}"
    if "fpr" in summary:
        return (
            f"A hit is a document with a p-value of at most {summary['fpr']:g}. Chance alone makes "
            f"at most {expected} of these documents a hit."
        )
    share = f"{100 * summary['fdr']:g} %"
    if not summary["watermarked"]:
        return (
            f"No document is a hit. If none is marked, the chance of any hit at all is at most "
            f"{share}."
        )
    return (
        f"A hit is a document with a p-value of at most {summary['largest_p_value']:.3g}. This "
        f"limit follows from all documents: at most {share} of the hits are expected to be false, "
        f"that is {expected} of {summary['watermarked']:,}."
    )


def write_summary(summary: dict[str, Any], folder: Path) -> None:
    """Write summary.json, summary.md and p_values.png into a folder."""
    with writing(folder):
        with atomic_write(folder / "summary.json") as file:
            file.write(json.dumps(summary, indent=2).encode() + b"\n")
        with atomic_write(folder / "summary.md") as file:
            file.write(as_text(summary).encode())
        _plot(summary, folder / "p_values.png")


def _plot(summary: dict[str, Any], path: Path) -> None:
    """Draw the p-values: flat where no text is marked, with a tail on the right where some are."""
    from matplotlib.figure import Figure

    linear, decades = summary["p_values"]["width_0.05"], summary["p_values"]["by_decade"]
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.bar((np.arange(BINS) + 0.5) / BINS, linear, 1 / BINS, edgecolor="white")
    left.set_xlabel("p-value")
    left.set_ylabel("documents")
    right.bar(np.arange(DECADES) + 0.5, decades, 1, edgecolor="white")
    if limit := summary["largest_p_value"]:
        right.axvline(-np.log10(limit), color="black", linestyle="--", label="hits: right of this")
        right.legend()
    right.set_yscale("symlog", linthresh=1)
    right.set_xlabel("p-value, as its number of zeros (the last bar: all smaller ones)")
    figure.suptitle(f"{summary['documents']:,} documents, {summary['watermarked']:,} watermarked")
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
