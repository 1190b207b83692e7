"""Find the files a scan is asked to read: files, folders, globs, and URLs that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fsspec

from dllmark.errors import InputError

CHANGES = ("ETag", "etag", "blob_id", "checksum", "mtime", "LastModified", "last_modified")
"""Where file systems say that a file's content changed; the first that is there counts."""


@dataclass(frozen=True)
class InputFile:
    """A file to scan, and what tells it from a later version of itself."""

    path: str
    size: int
    version: str


def find_files(inputs: Iterable[str], leave_out: str) -> list[InputFile]:
    """Return the files of all inputs, each once, in an order that depends on their names only.

    Inside folders, names that start with . or _ are passed over, and so is the folder `leave_out`,
    where the results go.

    >>> [file.size for file in find_files(["README.md"], leave_out="out")]  # doctest: +SKIP
    [4711]
    """
    found: dict[str, InputFile] = {}
    for given in inputs:
        try:
            files = list(_expand(given, os.path.abspath(leave_out)))
        except ImportError as error:  # fsspec names the package that opens this kind of URL
            raise InputError(f"cannot read {given}: {error}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot read {given}: {reason}") from None
        if not files:
            raise InputError(f"there is no file {given}: give a file, a folder, a glob or a URL")
        found.update((file.path, file) for file in files)
    return list(found.values())


def _expand(given: str, leave_out: str) -> Iterator[InputFile]:
    fs, path = fsspec.core.url_to_fs(given)
    literal = fs.exists(path)
    for match in [path] if literal or not fsspec.core.has_magic(path) else sorted(fs.glob(path)):
        if not fs.isdir(match):
            if fs.exists(match):
                yield _described(fs, fs.info(match))
            continue
        for name, info in sorted(fs.find(match, detail=True).items()):
            inside = name[len(match) :].split("/")
            hidden = any(part.startswith((".", "_")) for part in inside)
            if not hidden and not name.startswith(leave_out.rstrip(os.sep) + os.sep):
                yield _described(fs, info)


def _described(fs: Any, info: dict[str, Any]) -> InputFile:
    name = info["name"] if _is_local(fs) else fs.unstrip_protocol(info["name"])
    version = next((str(info[field]) for field in CHANGES if field in info), "")
    return InputFile(name, int(info.get("size") or 0), version)


def _is_local(fs: Any) -> bool:
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)
