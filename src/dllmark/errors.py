"""The errors a user can cause and mend: each message says what was wrong and what to do."""

from __future__ import annotations

import importlib.util


class DllmarkError(Exception):
    """Base of every error raised on purpose; the command line prints it and exits 2."""


class KeyFileError(DllmarkError):
    """A key file is missing, unsafe, damaged or of another version."""


class KeyRingError(DllmarkError):
    """A key ring is missing, unsafe or damaged, or has no key for what is asked of it."""


class TokenizerError(DllmarkError):
    """A tokenizer cannot be found or read, or its token ids do not fit."""


class MismatchError(DllmarkError):
    """A text, key, tokenizer or matrix belong to different watermarks."""


class InputError(DllmarkError):
    """A text or file given to be scored cannot be used."""


class ModelError(DllmarkError):
    """A model cannot be found, read, or put on the device that was chosen."""


class OutputError(DllmarkError):
    """Standard output cannot be written."""


class MissingPackageError(DllmarkError, ImportError):
    """A package that only this part needs is not installed; the message says how to install it."""


class MissingNameError(DllmarkError, AttributeError):
    """A name is not there because the package that it needs is not installed."""


def require(purpose: str, extra: str, *packages: str) -> None:
    """Raise `MissingPackageError` unless the packages that something needs are installed.

    >>> require("detection", "all", "numpy", "tokenizers")
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        needs = " and ".join(missing)
        raise MissingPackageError(f"{purpose} needs {needs}: pip install 'dllmark[{extra}]'")
