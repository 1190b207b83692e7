"""Loading a model: config.json, a tokenizer and safetensors in, and no code from a hub run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dllmark.errors import ModelError
from dllmark.models import chat_template, few_bits, packed
from dllmark.models.chat_template import ChatTemplate, read_chat_template
from dllmark.models.checkpoint import INDEX, read_json, read_transformer, weight_files
from dllmark.models.config_json import read_config
from dllmark.models.families import FAMILIES, Family
from dllmark.models.transformer import Config, Transformer
from dllmark.relation import qwen_tokenizer
from dllmark.relation.tokenizer import FILE as TOKENIZER_FILE
from dllmark.relation.tokenizer import Tokenizer, is_hub_id, read_folder

EMBEDDED = Path(__file__).parent / "embedded"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

SMALL_FILES = ["config.json", TOKENIZER_FILE, *qwen_tokenizer.FILES, chat_template.FILE, INDEX]
"""What a model may have beside its weights."""

HUB_FILES = [*SMALL_FILES, "model*.safetensors"]
"""All that is ever downloaded of a repository: data, and a template that a sandbox fills in."""


@dataclass(frozen=True)
class Model:
    """A diffusion model ready to generate, with its tokenizer and the ids the sampler needs.

    `end_ids` are the tokens that end a text or a turn, the family's end of text first. Without a
    chat template of its own, a checkpoint has its family's.

    >>> model = load_model("embedded")  # doctest: +SKIP
    >>> prompt = model.tokenizer.encode(model.chat("Hello!"))  # doctest: +SKIP
    >>> logits = model.transformer(torch.as_tensor(prompt)[None])  # doctest: +SKIP
    """

    name: str
    family: Family
    transformer: Transformer = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    mask_id: int
    end_ids: tuple[int, ...]
    pad_id: int
    template: ChatTemplate | None = field(default=None, repr=False)

    def chat(self, question: str) -> str:
        """Write a user's question the way the model was trained to answer it."""
        return self.conversation([("user", question)])

    def conversation(self, messages: Sequence[tuple[str, str]]) -> str:
        """Write messages, each a role and a text, the way the model was trained to go on with."""
        return (self.template or self.family).conversation(messages)

    @property
    def config(self) -> Config:
        """The numbers of the transformer."""
        return self.transformer.config

    @property
    def device(self) -> torch.device:
        """Where the weights are, and the tokens must be."""
        return self.transformer.embedding.weight.device


def load_model(source: str, *, device: str = "auto", dtype: str = "auto") -> Model:
    """Return the model named "embedded", or of a folder, or of a repository on the hub.

    "auto" is the GPU if there is one, and bfloat16 there, float32 on the CPU. There, weights
    stored in 4 bits (those of "embedded") stay so where the processor has a kernel for them, which
    rounds a little more, and others lie as the processor multiplies by them fastest; with the dtype
    "float32" they are ordinary layers.
    """
    target = _device(device)
    number = _dtype(dtype, target)
    kernels = dtype == "auto" and target.type == "cpu"
    folder = _folder(source)
    record = read_json(folder / "config.json")
    family = _family(folder, record)
    config = read_config(folder / "config.json", family, record)
    name = str(folder.resolve()) if folder == Path(source) else source
    tokenizer = Tokenizer(read_folder(folder), name)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size} ids, the embedding only "
            f"{config.vocab_size} rows: put the tokenizer of this model into the folder"
        )
    ends = _end_ids(folder, family, tokenizer)
    in_few_bits = kernels and few_bits.has_kernel()
    transformer = read_transformer(folder, family, config, target, number, in_few_bits=in_few_bits)
    if kernels and packed.has_kernel():
        packed.pack(transformer)
    return Model(
        name=source,
        family=family,
        mask_id=_mask_id(folder, family, tokenizer, record, config),
        end_ids=ends,
        pad_id=_pad_id(record, config, ends[0]),
        template=read_chat_template(folder),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def read_family(source: str) -> Family:
    """Return the family of a model that `load_model` takes, without its weights.

    >>> read_family("embedded").name
    'embedded'
    """
    folder = _folder(source)
    return _family(folder, read_json(folder / "config.json"))


def model_files(source: str) -> list[Path]:
    """Return the files of a model that `load_model` takes, the weights last, in a fixed order.

    Their hashes prove which model it was; its name does not.

    >>> [path.name for path in model_files("embedded")]
    ['config.json', 'tokenizer.json', 'model.safetensors']
    """
    folder = _folder(source)
    small = [folder / name for name in SMALL_FILES]
    return [*filter(Path.exists, small), *weight_files(folder)]


def _device(name: str) -> torch.device:
    """Return the device of that name after trying it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # the second where torch was built without CUDA
        raise ModelError(
            f"the device {name} is not available here: use auto, cpu, or cuda where there is a GPU"
        ) from None
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the number format of that name."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise ModelError(f"unknown dtype {name}: use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _folder(source: str) -> Path:
    """Return the folder a model's files are in, after downloading them if need be."""
    if source == "embedded":
        return EMBEDDED
    if os.path.isdir(source):  # unlike Path.is_dir, False for a name that is too long
        return Path(source)
    if is_hub_id(source):
        return _download(source)
    raise ModelError(
        f"there is no model {source}: give `embedded`, the folder of a model, "
        "or the id of one on the Hugging Face hub"
    )


def _download(repository: str) -> Path:
    """Return the folder of a repository in the local cache; what is there is not fetched again."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=HUB_FILES))
    except Exception as error:  # offline, unknown, private: the hub has a dozen classes for it
        raise ModelError(
            f"cannot get {repository} from the Hugging Face hub ({type(error).__name__}): "
            "check the name and the connection, or give the folder of a downloaded model"
        ) from None


def _family(folder: Path, record: dict[str, Any]) -> Family:
    """Return the family a config.json names."""
    model_type = record.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(
            f"{folder / 'config.json'} says model_type {model_type}, which is unknown: "
            f"the models known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def _mask_id(
    folder: Path, family: Family, tokenizer: Tokenizer, record: dict[str, Any], config: Config
) -> int:
    """Return the id of the mask, on which config.json and tokenizer must agree."""
    if "mask_token_id" not in record:
        return _needed_id(folder, family, tokenizer, family.mask)
    given, named = record["mask_token_id"], _token_id(tokenizer, family.mask)
    fits = isinstance(given, int) and 0 <= given < config.vocab_size
    if named not in (None, given) or not fits:
        raise ModelError(
            f"{folder / 'config.json'} has mask_token_id {given}, which does not fit: the tokenizer"
            f" gives {family.mask} the id {named}, the embedding has {config.vocab_size} rows"
        )
    return int(given)


def _end_ids(folder: Path, family: Family, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of the family's end tokens; only the first is in every tokenizer."""
    first = _needed_id(folder, family, tokenizer, family.ends[0])
    others = (_token_id(tokenizer, token) for token in family.ends[1:])
    return (first, *(id_ for id_ in others if id_ is not None))


def _pad_id(record: dict[str, Any], config: Config, end: int) -> int:
    """Return the id to pad with; no position looks at it, so one that is no row is not missed."""
    given = record.get("pad_token_id")
    return given if isinstance(given, int) and 0 <= given < config.vocab_size else end


def _needed_id(folder: Path, family: Family, tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a special token that the model cannot do without."""
    id_ = _token_id(tokenizer, token)
    if id_ is None:
        raise ModelError(
            f"the tokenizer in {folder} has no token {token}: "
            f"put the tokenizer of a {family.name} model into the folder"
        )
    return id_


def _token_id(tokenizer: Tokenizer, token: str) -> int | None:
    """Return the id of a special token, or None if the tokenizer cuts it up like any text."""
    ids = tokenizer.encode(token)
    return int(ids[0]) if len(ids) == 1 else None
