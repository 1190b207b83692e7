"""Kill a scan at each moment at which a file is about to change, continue it, and compare.

Usage: python kill_everywhere.py CORPUS KEY FOLDER
Prints one line of JSON: how many parts the scan has, how many moments there were, and those after
which the result differed from that of a scan nobody killed. To save time, a process that has loaded
all it needs is forked for each run, nothing is drawn, and no disk is waited for.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from corpora import tree

from dllmark.cluster import Engine
from dllmark.files import atomic_write
from dllmark.relation.key import WatermarkKey
from dllmark.scan import summary
from dllmark.scan.reading import Columns
from dllmark.scan.rule import Rule
from dllmark.scan.run import Scan
from dllmark.scan.work import ScanSettings


def scan(corpus: str, settings: ScanSettings, folder: Path) -> None:
    Scan([corpus], settings, folder, shard_bytes=6000).run(Engine(workers=1))


def draw_nothing(summary: dict, path: Path) -> None:
    with atomic_write(path):
        pass


def killed_at(moment: int, corpus: str, settings: ScanSettings, folder: Path) -> bool:
    """Scan in a process that kills itself at a moment; return whether it came that far."""
    child = os.fork()
    if child == 0:
        seen = 0

        def counted(function):
            def call(*arguments, **named):
                nonlocal seen
                if seen == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1
                return function(*arguments, **named)

            return call

        os.fsync = counted(lambda descriptor: None)
        os.replace, os.rmdir = map(counted, (os.replace, os.rmdir))
        try:
            scan(corpus, settings, folder)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the scan failed"
    return os.WIFSIGNALED(status)


def main() -> None:
    corpus, work = sys.argv[1], Path(sys.argv[3])
    settings = ScanSettings((WatermarkKey.load(sys.argv[2]),), Rule(), Columns())
    loaded = settings.scorer()
    ScanSettings.scorer = lambda settings: loaded
    summary._plot = draw_nothing
    scan(corpus, settings, work / "whole")
    whole = tree(work / "whole")
    different, moment = [], 0
    while killed_at(moment, corpus, settings, folder := work / "killed"):
        killed_at(-1, corpus, settings, folder)
        if tree(folder) != whole:
            different.append(moment)
        shutil.rmtree(folder)
        moment += 1
    parts = len(list((work / "whole" / "rows").iterdir()))
    print(json.dumps({"parts": parts, "moments": moment, "different": different}))


if __name__ == "__main__":
    main()
