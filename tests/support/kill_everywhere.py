"""Kill a scan at each moment at which a file is about to change, continue it, and compare.

Usage: python kill_everywhere.py CORPUS KEY FOLDER, where FOLDER/whole holds an uninterrupted scan.
Prints one line of JSON: how many moments there were, and those after which the result differed.
A process that has imported and loaded all it needs is forked for each run, which saves time.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import matplotlib.figure  # noqa: F401  imported before the forks
from corpora import tree

from dllmark.relation.key import WatermarkKey
from dllmark.scan.reading import Columns
from dllmark.scan.run import Engine, Scan
from dllmark.scan.work import Job


def scan(corpus: str, job: Job, folder: Path) -> None:
    Scan([corpus], job, folder, shard_bytes=6000).run(Engine(workers=1), fdr=None)


def killed_at(moment: int, corpus: str, job: Job, folder: Path) -> bool:
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

        os.fsync, os.replace, os.rmdir = map(counted, (os.fsync, os.replace, os.rmdir))
        try:
            scan(corpus, job, folder)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the scan failed"
    return os.WIFSIGNALED(status)


def main() -> None:
    corpus, work = sys.argv[1], Path(sys.argv[3])
    job = Job((WatermarkKey.load(sys.argv[2]),), 1e-6, Columns())
    loaded = job.scorer()
    Job.scorer = lambda job: loaded
    whole = tree(work / "whole")
    different, moment = [], 0
    while killed_at(moment, corpus, job, folder := work / "killed"):
        killed_at(-1, corpus, job, folder)
        if tree(folder) != whole:
            different.append(moment)
        shutil.rmtree(folder)
        moment += 1
    print(json.dumps({"moments": moment, "different": different}))


if __name__ == "__main__":
    main()
