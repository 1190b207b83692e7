"""What a watermark may be named by: a key, the path of its file, or a green list."""

from __future__ import annotations

from pathlib import Path

from dllmark.errors import InputError, MismatchError
from dllmark.relation.greenlist import GreenList
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import AnyTokenizer, Tokenizer, as_tokenizer, load_tokenizer

Source = WatermarkKey | GreenList | str | Path
"""A key, the path of a key file, or a green list."""


def resolve(
    source: Source, tokenizer: AnyTokenizer | None = None
) -> tuple[WatermarkKey | GreenList, Tokenizer]:
    """Return a key or green list with its tokenizer; raise where the two do not belong together.

    A key knows where its tokenizer is, a green list does not.

    >>> source, tokenizer = resolve(key)
    >>> tokenizer.name
    'embedded'
    """
    if isinstance(source, str | Path):
        source = WatermarkKey.load(source)
    if not isinstance(source, WatermarkKey | GreenList):
        raise InputError(
            "a watermark is given by a WatermarkKey, the path of a key file or a green list; "
            f"got {type(source).__name__}"
        )
    if tokenizer is not None:
        tokenizer = as_tokenizer(tokenizer)
    elif isinstance(source, WatermarkKey):
        tokenizer = load_tokenizer(source.tokenizer.name)
    else:
        raise InputError("a green list has no tokenizer of its own: pass the model's")
    if isinstance(source, WatermarkKey):
        check_version(source, tokenizer)
    source.identity.check_tokenizer(tokenizer.fingerprint, tokenizer.name)
    if not isinstance(source, WatermarkKey) and tokenizer.vocab_size > source.vocab_size:
        raise MismatchError(
            f"the green list covers {source.vocab_size} tokens, but {tokenizer.name} has "
            f"{tokenizer.vocab_size}: they belong to different models"
        )
    return source, tokenizer


def check_version(key: WatermarkKey, tokenizer: Tokenizer) -> None:
    """Raise `MismatchError` where both are of the embedded model, but of different versions of it.

    >>> check_version(key, load_tokenizer("embedded"))
    """
    same = key.tokenizer.fingerprint == tokenizer.fingerprint
    if not same and key.tokenizer.name == tokenizer.name == "embedded":
        raise MismatchError(
            f"key {key.id} was made for the model in another version of dllmark, which has another "
            "tokenizer: make a new key with `dllmark keygen`. Check the texts this one marked with "
            "that version, or with its tokenizer.json given as --tokenizer"
        )
