"""What a finished scan says as a whole, computed from its rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dllmark.detection.detector import Verdict
from dllmark.detection.words import strength
from dllmark.files import atomic_write, writing

BINS = 20
DECADES = 30
"""p-values below 1e-30 share the last bin."""

HIT = Verdict.WATERMARKED.value


def summarise(
    rows: Iterable[Path], errors: Path, fpr: float, fdr: float | None = None
) -> dict[str, Any]:
    """Return the counts of a scan as JSON values.

    With `fdr`, also how many documents Benjamini and Hochberg's procedure finds at that false
    discovery rate. In memory are one file of rows at a time, and the p-values up to `fdr`.
    """
    verdicts: Counter[str] = Counter()
    strengths: Counter[str] = Counter()
    by_key: Counter[str] = Counter()
    by_payload: Counter[str | None] | None = None
    by_file: dict[str, Counter[str]] = {}
    linear, decades = np.zeros(BINS, dtype=np.int64), np.zeros(DECADES, dtype=np.int64)
    small = [np.zeros(0)]
    for path in rows:
        columns = ["path", "verdict", "p_value", "key_id"]
        with_payload = "payload" in pq.read_schema(path).names
        table = pq.read_table(path, columns=columns + ["payload"] * with_payload)
        groups = table.group_by(["path", "verdict"], use_threads=False)
        for row in groups.aggregate([([], "count_all")]).to_pylist():
            by_file.setdefault(row["path"], Counter())[row["verdict"]] += row["count_all"]
            verdicts[row["verdict"]] += row["count_all"]
        hits = table.filter(pc.field("verdict") == HIT)
        strengths.update(map(strength, hits["p_value"].to_pylist()))
        by_key.update(hits["key_id"].to_pylist())
        if with_payload:
            by_payload = by_payload or Counter()
            by_payload.update(hits["payload"].to_pylist())
        p_values = table["p_value"].to_numpy()
        linear += np.histogram(p_values, BINS, (0, 1))[0]
        digits = -np.log10(np.maximum(p_values, 10.0 ** (0.5 - DECADES)))
        decades += np.histogram(digits, DECADES, (0, DECADES))[0]
        small.append(p_values[p_values <= (fdr or 0)])
    documents = verdicts.total()
    return {
        "documents": documents,
        "watermarked": verdicts[HIT],
        "not_detected": verdicts[Verdict.NOT_DETECTED.value],
        "too_short": verdicts[Verdict.TOO_SHORT.value],
        "errors": _count_lines(errors),
        "fpr": fpr,
        "expected_false_hits": fpr * documents,
        "benjamini_hochberg": fdr and _discoveries(np.concatenate(small), documents, fdr),
        "watermarked_by_strength": dict(sorted(strengths.items())),
        "watermarked_by_key": dict(sorted(by_key.items())),
        **({} if by_payload is None else {"watermarked_by_payload": _by_payload(by_payload)}),
        "files": len(by_file),
        "watermarked_by_file": _hits_by_file(by_file),
        "p_values": {"width_0.05": linear.tolist(), "by_decade": decades.tolist()},
    }


def benjamini_hochberg(
    p_values: NDArray[np.float64], documents: int, fdr: float
) -> tuple[int, float]:
    """Return how many of some documents are discoveries, and the largest p-value of one (or 0).

    Only the p-values up to `fdr` are needed: no larger one can be a discovery.

    >>> benjamini_hochberg(np.array([0.001, 0.02, 0.04]), documents=10, fdr=0.05)
    (1, 0.001)
    """
    ordered = np.sort(p_values[p_values <= fdr])
    below = np.flatnonzero(ordered <= fdr * np.arange(1, len(ordered) + 1) / documents)
    if not len(below):
        return 0, 0.0
    return int(below[-1]) + 1, float(ordered[below[-1]])


def _discoveries(small: NDArray[np.float64], documents: int, fdr: float) -> dict[str, Any]:
    discovered, largest = benjamini_hochberg(small, documents, fdr)
    return {"fdr": fdr, "documents": discovered, "largest_p_value": largest}


def _hits_by_file(by_file: dict[str, Counter[str]]) -> list[dict[str, Any]]:
    """Return the files with hits, those with most hits first."""
    hits = [
        {"path": path, "documents": verdicts.total(), "watermarked": verdicts[HIT],
         "rate": verdicts[HIT] / verdicts.total()}
        for path, verdicts in by_file.items()
        if verdicts[HIT]
    ]  # fmt: skip
    return sorted(hits, key=lambda record: (-record["watermarked"], record["path"]))


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
        f"- watermarked: {summary['watermarked']:,}, where chance alone would give at most "
        f"{summary['expected_false_hits']:.3g} (rate {summary['fpr']:g})",
        f"- not detected: {summary['not_detected']:,}",
        f"- not detected, and too short for a miss to mean something: {summary['too_short']:,}",
        f"- not readable: {summary['errors']:,}" + (", see errors.jsonl" * (summary["errors"] > 0)),
    ]
    if strengths := summary["watermarked_by_strength"]:
        shown = ", ".join(f"{count:,} {name}" for name, count in strengths.items())
        lines.insert(4, f"- the evidence of those: {shown}")
    if discoveries := summary["benjamini_hochberg"]:
        lines.append(
            f"- by Benjamini-Hochberg at a false discovery rate of {discoveries['fdr']:g}: "
            f"{discoveries['documents']:,}, with p-values up to "
            f"{discoveries['largest_p_value']:.3g}"
        )
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
    right.axvline(-np.log10(summary["fpr"]), color="black", linestyle="--", label="--fpr")
    right.set_yscale("symlog", linthresh=1)
    right.set_xlabel("p-value, as its number of zeros (the last bar: all smaller ones)")
    right.legend()
    figure.suptitle(f"{summary['documents']:,} documents, {summary['watermarked']:,} watermarked")
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
