"""Run a scan from its settings to its summary, and continue one that was cut off.

The output folder holds, in the order in which they appear: `manifest.json` (settings and shards),
`rows/part-*.parquet`, `unfinished/` (the errors of each shard, until all are done), `errors.jsonl`,
`hits.csv` and the summary. A shard is done when its rows are there. Nothing in these files depends
on time, on the number of workers or on the engine, so a continued scan ends in the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dllmark import __version__
from dllmark.cluster import Engine
from dllmark.errors import InputError
from dllmark.files import atomic_write, only_writer_in, writing
from dllmark.scan.inputs import Inputs, Unreadable, find_files
from dllmark.scan.local import scan_here, scan_in_processes
from dllmark.scan.plan import Shard, cut, shard_size
from dllmark.scan.reading import LARGEST
from dllmark.scan.summary import summarise, write_summary
from dllmark.scan.work import (
    OnProgress,
    ScanSettings,
    error_line,
    errors_path,
    rows_path,
    strict_error,
)

FORMAT = "dllmark-scan-1"
MANIFEST = "manifest.json"
HITS = "hits.csv"


@dataclass(frozen=True)
class Scan:
    """What to scan, for what, and where to put the result."""

    inputs: Sequence[str]
    settings: ScanSettings
    folder: Path
    shard_bytes: int | None = None

    def run(
        self,
        engine: Engine,
        on_plan: Callable[[int, int], None] = lambda total, done: None,
        on_progress: OnProgress = lambda size, documents: None,
    ) -> dict[str, Any]:
        """Scan what is not done yet, and return the summary.

        `on_plan` is told the bytes of all shards and of those already done.
        """
        with only_writer_in(self.folder):
            shards, unreadable = self._plan()
            self._clean()
            left = [shard for shard in shards if not rows_path(self.folder, shard).exists()]
            total = sum(shard.size for shard in shards)
            on_plan(total, total - sum(shard.size for shard in left))
            if left:
                self._work(left, engine, on_progress)
            return self._finish(shards, unreadable)

    def _plan(self) -> tuple[list[Shard], list[Unreadable]]:
        """Return the shards and the folders that cannot be read.

        The shards are those of the manifest, or new ones, which are then written to it.
        """
        inputs = find_files(self.inputs, str(self.folder))
        if self.settings.strict and inputs.unreadable:
            raise strict_error(inputs.unreadable[0])
        settings = self._recorded(inputs)
        path = self.folder / MANIFEST
        if path.exists():
            return _continued(path, settings), inputs.unreadable
        if any(not left.name.startswith(f".{MANIFEST}.") for left in self.folder.iterdir()):
            raise InputError(f"{self.folder} is not empty and holds no scan: give another folder")
        shards = cut(inputs.files, settings["shard_bytes"])
        record = {"settings": settings, "shards": [shard.packed() for shard in shards]}
        with writing(self.folder), atomic_write(path) as file:
            file.write(json.dumps(record, indent=1).encode() + b"\n")
        return shards, inputs.unreadable

    def _recorded(self, inputs: Inputs) -> dict[str, Any]:
        """Return all that decides the rows, and nothing secret."""
        identities = dict.fromkeys(key.identity for key in self.settings.keys)
        payloads = self.settings.payloads
        return {
            "format": FORMAT,
            "version": __version__,
            "keys": [identity.to_dict() for identity in identities],
            "payloads": payloads and payloads.summary(),
            "rule": asdict(self.settings.rule),
            "columns": asdict(self.settings.columns),
            "shard_bytes": self.shard_bytes or shard_size(inputs.files),
            "largest_document": LARGEST,
            "files": [list(asdict(file).values()) for file in inputs.files],
            "unreadable": [list(folder) for folder in inputs.unreadable],
        }

    def _clean(self) -> None:
        """Make the folders, and remove the half-written files of a scan that was killed."""
        with writing(self.folder):
            for folder in (self.folder, self.folder / "rows", self.folder / "unfinished"):
                folder.mkdir(exist_ok=True)
                for left in folder.glob(".*.*.*"):  # the names that `atomic_write` gives
                    left.unlink()

    def _work(self, left: list[Shard], engine: Engine, on_progress: OnProgress) -> None:
        if engine.name == "ray":
            from dllmark.scan.on_ray import scan_on_ray

            scan_on_ray(self.folder, left, self.settings, on_progress, engine)
            return
        workers = min(engine.workers or available_cores(), len(left))
        if workers == 1:
            scan_here(self.folder, left, self.settings, on_progress)
        else:
            scan_in_processes(self.folder, left, self.settings, on_progress, workers)

    def _finish(self, shards: list[Shard], unreadable: list[Unreadable]) -> dict[str, Any]:
        """Join the errors, then write the summary; every step can be repeated."""
        errors = self.folder / "errors.jsonl"
        with writing(self.folder):
            if not errors.exists():
                with atomic_write(errors) as file:
                    file.writelines(map(error_line, unreadable))
                    for shard in shards:
                        file.write(errors_path(self.folder, shard).read_bytes())
            shutil.rmtree(self.folder / "unfinished")
        if self.settings.strict:
            with errors.open("rb") as lines:
                for line in lines:
                    raise strict_error(Unreadable(**json.loads(line)))
        rows = [rows_path(self.folder, shard) for shard in shards]
        summary = summarise(rows, errors, self.settings.rule, self.folder / HITS)
        write_summary(summary, self.folder)
        return summary


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _continued(path: Path, settings: dict[str, Any]) -> list[Shard]:
    """Return the shards of a manifest, if it was made with the same settings."""
    try:
        record = json.loads(path.read_bytes())
        before = record["settings"]
        shards = [Shard.unpacked(*numbered) for numbered in enumerate(record["shards"])]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} cannot be read: give another folder") from None
    for name, now in settings.items():
        if before.get(name) != now:
            files = name in ("files", "unreadable")
            what = "other input files, or they changed" if files else f"another {name}"
            raise InputError(
                f"{path.parent} holds a scan with {what}: give another folder for this one"
            )
    return shards
