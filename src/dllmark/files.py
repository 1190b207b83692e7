"""Write files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o644, overwrite: bool = True) -> Iterator[BinaryIO]:
    """Open a file that appears under `path` only once it is complete.

    The bytes go to a temporary file in the same folder, which is moved into place when the block
    ends without an error and removed otherwise. With `overwrite=False` an existing file is never
    replaced, even one that appears meanwhile: `FileExistsError` is raised instead.

        with atomic_write(Path("table.csv")) as file:
            file.write(b"a,b")
    """
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(str(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        if overwrite:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, fails where the name is taken
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
