"""Scan on a Ray cluster: the same shards and the same work, wherever Ray Data runs it.

Workers need to read the input, not to write the output: they send back the files of a shard, and
the process that started the scan writes them.
"""

from __future__ import annotations

import functools
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dllmark.cluster import Engine, cluster, require_ray
from dllmark.errors import DllmarkError
from dllmark.files import atomic_write, writing
from dllmark.scan.plan import Shard
from dllmark.scan.scoring import Scorer
from dllmark.scan.work import (
    OnProgress,
    ScanSettings,
    errors_path,
    rows_path,
    scan_shard,
    unexpected_error,
)


def scan_on_ray(
    folder: Path,
    shards: Sequence[Shard],
    settings: ScanSettings,
    on_progress: OnProgress,
    engine: Engine,
) -> None:
    """Scan shards on the cluster at an address, on the one in use, or on a local one."""
    require_ray()
    import ray.data

    with cluster(engine.address, engine.workers):
        by_index = {shard.index: shard for shard in shards}
        items = [{"index": one.index, "pieces": json.dumps(one.packed())} for one in shards]
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        results = ray.data.from_items(items, override_num_blocks=len(items)).map(
            functools.partial(_scan, settings=settings), num_cpus=1, concurrency=engine.workers
        )
        for result in results.iter_rows():
            if result["failure"]:
                raise DllmarkError(result["failure"])
            _write(folder, by_index[result["index"]], result)
            on_progress(by_index[result["index"]].size, result["documents"])


def _write(folder: Path, shard: Shard, result: dict[str, Any]) -> None:
    """Write the two files of a shard, the rows last: they say that it is done."""
    with writing(folder):
        with atomic_write(errors_path(folder, shard)) as file:
            file.write(result["errors"])
        with atomic_write(rows_path(folder, shard)) as file:
            file.write(result["rows"])


def _scan(item: dict[str, Any], settings: ScanSettings) -> dict[str, Any]:
    """Scan one shard, on a node of the cluster; what fails is told, since Ray would retry it."""
    rows, errors = io.BytesIO(), io.BytesIO()
    documents = 0

    def count(_: int, more: int) -> None:
        nonlocal documents
        documents += more

    shard = Shard.unpacked(item["index"], json.loads(item["pieces"]))
    failure = ""
    try:
        scan_shard(shard, settings, _scorer(settings), rows, errors, count)
    except DllmarkError as error:
        failure = str(error)
    except OSError as error:
        failure = f"cannot scan {shard.files}: {error.strerror or error}"
    except Exception as error:
        failure = str(unexpected_error(error, shard))
    return {
        "index": item["index"],
        "documents": documents,
        "failure": failure,
        "rows": rows.getvalue(),
        "errors": errors.getvalue(),
    }


@functools.lru_cache(maxsize=1)
def _scorer(settings: ScanSettings) -> Scorer:
    """Load the tokenizers once a worker, not once a shard."""
    return settings.scorer()
