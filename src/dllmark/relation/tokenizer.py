"""Text to token ids and back: the tokenizer a key belongs to, and which of its ids are scored."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
from numpy.typing import NDArray

from dllmark.errors import InputError, TokenizerError
from dllmark.files import check_unicode
from dllmark.relation import qwen_tokenizer
from dllmark.relation.key import TokenizerId

Ids = NDArray[np.int64]

FILE = "tokenizer.json"

EMBEDDED = Path(__file__).parent.parent / "models" / "embedded" / FILE

PIECE = 1 << 19
"""Characters tokenised at a time: a tokenizer needs some hundred bytes of memory for each."""

APOSTROPHES = "'’"
"""What may stand inside a word."""


class Tokenizer:
    """A tokenizer with what the watermark must know of it.

    `scored[id]` says whether a token takes part: special tokens (mask, end of text, padding) and
    ids without a token do not.

    >>> tokenizer = load_tokenizer("embedded")
    >>> tokenizer.decode(tokenizer.encode("Hello there."))
    'Hello there.'
    """

    def __init__(self, definition: str, name: str) -> None:
        try:
            record = json.loads(definition)
            self._backend = tokenizers.Tokenizer.from_str(definition)
        except Exception:  # the tokenizers package raises bare Exception
            raise TokenizerError(
                f"{name} is not a tokenizer.json that the `tokenizers` package reads"
            ) from None
        self._backend.no_truncation()
        self._backend.no_padding()
        self.name = name
        self.fingerprint = _fingerprint(record)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise TokenizerError(f"{name} is a tokenizer.json without a vocabulary")
        ids = np.fromiter(vocabulary.values(), np.int64)
        self.vocab_size = int(ids.max()) + 1
        self.scored = np.zeros(self.vocab_size, dtype=np.bool_)
        self.scored[ids] = True
        for id_, token in self._backend.get_added_tokens_decoder().items():
            self.scored[id_] &= not token.special

    @property
    def id(self) -> TokenizerId:
        """What a key file stores of this tokenizer."""
        return TokenizerId(self.name, self.fingerprint)

    def definition(self) -> str:
        """Return the whole tokenizer as the content of a tokenizer.json."""
        whole: str = self._backend.to_str()
        return whole

    def encode(self, text: str) -> Ids:
        """Return the ids of one text, without the special tokens some tokenizers add."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, tokenised on all cores."""
        whole = [piece for text in texts for piece in _pieces(text)]
        ids = [np.asarray(encoding.ids, dtype=np.int64) for encoding in self._encodings(whole)]
        if len(whole) == len(texts):
            return ids
        parts = iter(ids)
        return [np.concatenate([next(parts) for _ in _pieces(text)]) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of a text and [N, 2]: where in it each token starts and ends."""
        ids, offsets, start = [], [], 0
        for piece in _pieces(text):
            [encoding] = self._encodings([piece], offsets=True)
            ids.append(np.asarray(encoding.ids, dtype=np.int64))
            offsets.append(np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2) + start)
            start += len(piece)
        return np.concatenate(ids), np.concatenate(offsets)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of some ids, special tokens left out."""
        text: str = self._backend.decode([int(id_) for id_ in ids], skip_special_tokens=True)
        return text

    @cached_property
    def word_edges(self) -> NDArray[np.bool_]:
        """Which tokens begin, and which end, with a character of words: [2, ids].

        One that begins so goes on with the word of one that ends so. Scripts that write no spaces
        between words have none.

        >>> tokenizer = load_tokenizer("embedded")
        >>> tokenizer.word_edges[:, tokenizer.encode(" knots.")]  # " kn", "ots", "."
        array([[False,  True, False],
               [ True,  True, False]])
        """
        words = (
            id_ for id_ in np.flatnonzero(self.scored).tolist() if self.decode([id_]).isalnum()
        )
        first = [*islice(words, 1)]  # some decoders drop the space before a first token
        rows = [[*first, id_] for id_ in range(self.vocab_size)]
        start = len(self.decode(first))
        texts = [text[start:] for text in self._backend.decode_batch(rows)]
        edges = [
            [_of_words(text[1:2] if text[:1] in APOSTROPHES else text[:1]) for text in texts],
            [_of_words(text[-1:]) for text in texts],
        ]
        return np.array(edges)

    def as_ids(self, ids: Sequence[int] | Ids) -> Ids:
        """Return token ids as an array; raise if they are none, or none of this tokenizer.

        >>> load_tokenizer("embedded").as_ids([17, 40, 9])
        array([17, 40,  9])
        """
        array = _array(ids)
        if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            raise InputError(
                "token ids are one flat sequence of integers; "
                f"got {type(ids).__name__} ({array.dtype} of shape {array.shape})"
            )
        outside = array[(array < 0) | (array >= self.vocab_size)]
        if len(outside):
            raise TokenizerError(
                f"token id {outside[0]} is outside the vocabulary of {self.name}, "
                f"which has {self.vocab_size} ids: the ids come from another tokenizer"
            )
        return array.astype(np.int64)

    def _encodings(self, texts: list[str], *, offsets: bool = False) -> list[Any]:
        encode = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        try:
            return list(encode(texts, add_special_tokens=False))
        except (TypeError, UnicodeEncodeError):
            for text in texts:
                check_unicode(text)
            raise


class FastTokenizer(Protocol):
    """A tokenizer of transformers that works with the `tokenizers` package."""

    @property
    def backend_tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer that does the work."""


AnyTokenizer = Tokenizer | FastTokenizer | tokenizers.Tokenizer | str | Path
"""What `as_tokenizer` takes."""


def as_tokenizer(source: AnyTokenizer) -> Tokenizer:
    """Return a tokenizer as ours: a fast one of Hugging Face's, or what `load_tokenizer` takes.

    >>> as_tokenizer("embedded").vocab_size
    16384
    """
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, str | Path):
        return load_tokenizer(str(source))
    backend = getattr(source, "backend_tokenizer", source)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerError(
            f"a {type(source).__name__} is no tokenizer that can be used: give a fast one of "
            "Hugging Face's (with a backend_tokenizer), or the path of its tokenizer.json"
        )
    return Tokenizer(backend.to_str(), getattr(source, "name_or_path", "") or type(source).__name__)


def load_tokenizer(source: str) -> Tokenizer:
    """Return the tokenizer named "embedded", or of a file, a folder, or a model on the hub.

    >>> load_tokenizer("embedded").vocab_size
    16384
    """
    if source == "embedded":
        return _embedded()
    path = Path(source)
    if source and os.path.isdir(path):  # unlike Path.is_dir, False for a name that is too long
        named = path / FILE if os.path.exists(path / FILE) else path
        return Tokenizer(read_folder(path), str(named.resolve()))
    if source and os.path.exists(path):
        return Tokenizer(_read(path), str(path.resolve()))
    if is_hub_id(source):
        return Tokenizer(_from_hub(source), source)
    raise TokenizerError(
        f"there is no tokenizer {source}: give `embedded`, a tokenizer.json, "
        "a folder that holds one, or a model on the Hugging Face hub as owner/name"
    )


@cache
def _embedded() -> Tokenizer:
    return Tokenizer(EMBEDDED.read_text(encoding="utf-8"), "embedded")


def read_folder(folder: Path) -> str:
    """Return the tokenizer in a folder: the content of its tokenizer.json, or Qwen2's files as one.

    >>> read_folder(EMBEDDED.parent)[:1]
    '{'
    """
    if os.path.exists(folder / FILE):
        return _read(folder / FILE)
    if os.path.exists(folder / qwen_tokenizer.FILES[0]):
        return qwen_tokenizer.definition(folder)
    raise TokenizerError(
        f"there is no tokenizer in the folder {folder}: it needs a {FILE}, or Qwen2's "
        f"{', '.join(qwen_tokenizer.FILES)}, that can be read"
    )


def source_of_model(tokenizer: str) -> str:
    """Return what to load the model of a tokenizer from: the folder of its tokenizer.json, or it.

    >>> source_of_model("/models/llada/tokenizer.json"), source_of_model("embedded")
    ('/models/llada', 'embedded')
    """
    path = Path(tokenizer)
    return str(path.parent) if path.name == FILE else tokenizer


def is_hub_id(source: str) -> bool:
    """Return whether a name can be a model's on the Hugging Face hub, and not only a path's.

    >>> is_hub_id("owner/name"), is_hub_id("/folder"), is_hub_id("name"), is_hub_id("a/b/c")
    (True, False, False, False)
    """
    return source.count("/") == 1 and not source.startswith((".", "/", "~"))


def _from_hub(repository: str) -> str:
    """Return a model's tokenizer.json from the local cache or the hub; no code is run."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        try:
            path = hf_hub_download(repository, FILE)
        except LocalEntryNotFoundError:  # offline, and not in the cache: the others would not be
            raise
        except EntryNotFoundError:  # Dream has Qwen2's three files instead
            paths = [hf_hub_download(repository, name) for name in qwen_tokenizer.FILES]
            return qwen_tokenizer.definition(Path(paths[0]).parent)
    except TokenizerError:
        raise
    except Exception as error:  # offline, unknown, private: the hub has a dozen classes for it
        raise TokenizerError(
            f"cannot get the tokenizer of {repository} from the hub ({type(error).__name__}): "
            "check the name and the connection, or give the path of its tokenizer.json"
        ) from None
    return _read(Path(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise TokenizerError(f"cannot read {path} as a tokenizer.json") from None


def _array(ids: Any) -> NDArray[Any]:
    """Return ids as numpy sees them, a tensor's too; what holds no numbers is one object."""
    if isinstance(ids, bytes | bytearray | memoryview):
        return np.array(None)
    try:
        return np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
    except (TypeError, ValueError, RuntimeError):
        return np.array(None)


def _of_words(character: str) -> bool:
    """Return whether a character is a digit, or a letter of a script with spaces between words.

    Letters without upper and lower case are left out with them: most of these scripts have none.
    """
    return character.isalnum() and unicodedata.category(character) != "Lo"


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text into pieces before a space, where byte-level tokenizers cut it anyway."""
    start = 0
    while len(text) - start > PIECE:
        middle = start + PIECE // 2
        end = text.rfind(" ", middle, start + PIECE)
        while end > middle and text[end - 1].isspace():
            end -= 1  # inside a run of spaces, tokenizers do not cut
        end = end if end > middle else start + PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def _fingerprint(record: dict[str, Any]) -> str:
    """Hash what decides the ids of a text: neither layout, nor padding, nor where tokens end.

    Versions of `tokenizers` write the same in different ways: merges as "a b" or ["a", "b"], and
    what BPE does by default or not at all.
    """
    parts = {name: record.get(name) for name in ("normalizer", "added_tokens")}
    model = dict(record["model"])
    if "merges" in model:
        model["merges"] = [
            merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]
        ]
    if model.get("type") == "BPE":
        model.setdefault("ignore_merges", False)
    parts |= {"model": model, "pre_tokenizer": _without_offsets(record.get("pre_tokenizer"))}
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()[:32]


def _without_offsets(step: Any) -> Any:
    """Return a pre-tokenizer with `trim_offsets`, which changes no id, the same for all."""
    if not isinstance(step, dict):
        return step
    step = {**step, "trim_offsets": True} if "trim_offsets" in step else dict(step)
    if "pretokenizers" in step:
        step["pretokenizers"] = [_without_offsets(part) for part in step["pretokenizers"]]
    return step
