"""Scan in small shards: python small_shards.py KEY FOLDER WORKERS SHARD_BYTES INPUT..."""

import sys
from pathlib import Path

from dllmark.cluster import Engine
from dllmark.errors import DllmarkError
from dllmark.relation.key import WatermarkKey
from dllmark.scan.reading import Columns
from dllmark.scan.rule import Rule
from dllmark.scan.run import Scan
from dllmark.scan.work import ScanSettings

if __name__ == "__main__":
    key, folder, workers, shard_bytes, *inputs = sys.argv[1:]
    settings = ScanSettings((WatermarkKey.load(key),), Rule(), Columns())
    try:
        scan = Scan(inputs, settings, Path(folder), int(shard_bytes))
        scan.run(Engine(workers=int(workers)))
    except DllmarkError as error:
        sys.exit(f"error: {error}")
