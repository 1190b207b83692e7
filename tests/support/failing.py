"""Settings of a scan with which every worker fails, in a module that workers can import."""

import os

from dllmark.scan.work import ScanSettings

FAILURE = r"failed on .*\.jsonl with ZeroDivisionError: nobody foresaw this \(.*\. What is done"


class Failing(ScanSettings):
    """A worker fails with an error of its own."""

    def scorer(self):
        raise ZeroDivisionError("nobody foresaw this\nand its second line")


class Unloadable(ScanSettings):
    """A worker ends before it can say why."""

    def __reduce__(self):
        return os._exit, (7,)
