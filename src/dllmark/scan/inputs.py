"""Find the files of a scan: files, folders, globs, and URLs that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dllmark.errors import InputError

CHANGES = ("ETag", "etag", "blob_id", "checksum", "mtime", "LastModified", "last_modified")
"""Where file systems say that a file's content changed; the first that is there counts."""


@dataclass(frozen=True)
class InputFile:
    """A file to scan, and what tells it from a later version of itself."""

    path: str
    size: int
    version: str


class Unreadable(NamedTuple):
    """What could not be scored; without a row number, it is the rest of a file, or a folder."""

    path: str
    row: int | None
    reason: str


@dataclass(frozen=True)
class Inputs:
    """The files of a scan, and the folders among them that cannot be read."""

    files: list[InputFile] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)


def shown_path(path: str) -> str:
    r"""Return a path as valid text: a byte of a name that is not UTF-8 stands there as \udcNN.

    >>> print(shown_path("caf\udce9.txt"))
    caf\udce9.txt
    """
    return path.encode("utf-8", "backslashreplace").decode()


def find_files(inputs: Iterable[str], leave_out: str) -> Inputs:
    """Return the files of all inputs, each once, in an order that depends on their names only.

    Inside folders, names that start with . or _ are passed over, and so is the folder `leave_out`,
    where the results go.

    >>> [file.size for file in find_files(["README.md"], leave_out="out").files]  # doctest: +SKIP
    [4711]
    """
    files: dict[str, InputFile] = {}
    unreadable: dict[str, Unreadable] = {}
    for given in inputs:
        expanded = _expanded(given, os.path.abspath(leave_out))
        files.update((file.path, file) for file in expanded.files)
        unreadable.update((folder.path, folder) for folder in expanded.unreadable)
    return Inputs(list(files.values()), list(unreadable.values()))


def _expanded(given: str, leave_out: str) -> Inputs:
    """Return the files of one input; raise `InputError` where it has none."""
    shown, expanded = shown_path(given), Inputs()
    try:
        for item in _expand(given, leave_out):
            if isinstance(item, InputFile):
                expanded.files.append(item)
            else:
                expanded.unreadable.append(item)
    except ImportError as error:  # fsspec names the package that opens this kind of URL
        raise InputError(f"cannot read {shown}: {error}") from None
    except FileNotFoundError:
        raise InputError(
            f"there is no file {shown}: give a file, a folder, a glob or a URL"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {shown}: {reason}") from None
    if not expanded.files and expanded.unreadable:
        path, _, reason = expanded.unreadable[0]
        raise InputError(f"{path} {reason}, and there is nothing else to scan in {shown}")
    if not expanded.files:
        raise InputError(
            f"the folder {shown} holds nothing to scan (names that start with . or _ do not count)"
        )
    return expanded


class _LocalFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The local file system, which remembers what it could not list: fsspec leaves that out."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[str, OSError] = {}

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        """List a folder."""
        try:
            return super().ls(path, detail, **options)
        except FileNotFoundError:
            return []  # it was just removed
        except OSError as error:
            self.failed[path.rstrip("/")] = error
            return []

    def refused(self) -> dict[str, Unreadable]:
        """Return the folders that may not be listed; raise what failed for another reason."""
        failed, self.failed = sorted(self.failed.items()), {}
        for _, error in failed:
            if not isinstance(error, PermissionError):
                raise error
        return {path: _unreadable(path, error) for path, error in failed}


def _expand(given: str, leave_out: str) -> Iterator[InputFile | Unreadable]:
    fs, path = fsspec.core.url_to_fs(given)
    if "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
        fs = _LocalFiles()
    matches = [path]
    if fsspec.core.has_magic(path) and not fs.exists(path):
        matches = sorted(fs.glob(path))
        refused = fs.refused() if isinstance(fs, _LocalFiles) else {}
        yield from refused.values()
        if not matches and not refused:
            raise FileNotFoundError(path)
    for match in matches:
        try:
            info = fs.info(match)
        except OSError as error:  # a link to nowhere among what a glob matches
            if match == path:
                raise
            yield _unreadable(match, error)
            continue
        if info["type"] == "directory":
            yield from _below(fs, match, leave_out)
        else:
            yield _described(fs, info)


def _below(fs: Any, folder: str, leave_out: str) -> Iterator[InputFile | Unreadable]:
    """Yield the files below a folder that are not passed over."""

    def counts(name: str) -> bool:
        hidden = any(part.startswith((".", "_")) for part in name[len(folder) :].split("/"))
        return not hidden and not f"{name}/".startswith(leave_out.rstrip(os.sep) + os.sep)

    for name, info in sorted(fs.find(folder, detail=True).items()):
        if not counts(name):
            continue
        if info.get("islink") and os.path.isdir(name):
            yield Unreadable(shown_path(name), None, "is a link to a folder, which is not followed")
        else:
            yield _described(fs, info)
    if isinstance(fs, _LocalFiles):
        yield from (folder for path, folder in fs.refused().items() if counts(path))


def _unreadable(path: str, error: OSError) -> Unreadable:
    return Unreadable(shown_path(path), None, f"cannot be read: {error.strerror}")


def _described(fs: Any, info: dict[str, Any]) -> InputFile:
    local = isinstance(fs, _LocalFiles)
    name = info["name"] if local else fs.unstrip_protocol(info["name"])
    version = next((str(info[name]) for name in CHANGES if name in info), "")
    return InputFile(name, int(info.get("size") or 0), version)
