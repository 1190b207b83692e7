"""The files of a checkpoint: JSON, and weights from safetensors; nothing is unpickled.

Weights go one tensor at a time to the device and number format they are used in, so that a model
never takes more host memory than the weights that stay there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dllmark.errors import ModelError
from dllmark.models import few_bits, packed
from dllmark.models.families import Family
from dllmark.models.transformer import Config, Transformer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

TensorShape = tuple[int, ...]

Place = tuple[str, int | None]
"""The name of a parameter, and which of the slices along its first dimension."""


def read_text(path: Path) -> str:
    """Return the text of a file of the model."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(
            f"there is no {path.name} in {path.parent}: give the folder of a model"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {path} ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the entries of a JSON file, without those that are null."""
    try:
        entries = json.loads(read_text(path)).items()
    except (json.JSONDecodeError, AttributeError):
        raise ModelError(f"{path} is not a JSON object: download it again") from None
    return {name: value for name, value in entries if value is not None}


def read_transformer(
    folder: Path,
    family: Family,
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
    *,
    in_few_bits: bool = False,
) -> Transformer:
    """Return the transformer with the weights of a folder; they are checked before any is read.

    With `in_few_bits`, matrices of 4 bits stay so (`few_bits.FewBitsLinear`).
    """
    with torch.device("meta"):
        transformer = Transformer(config)
    places = _places(family, config)
    expected = {name: tuple(_parameter(transformer, place).shape) for name, place in places.items()}
    shapes = {path: _shapes(path) for path in weight_files(folder)}
    if config.tied_head:  # the embedding is the head, also where one is stored
        for part in shapes.values():
            part.pop(family.names["head.weight"], None)
    given = {name: shape for part in shapes.values() for name, shape in part.items()}
    _check_tensors(folder, family, given, expected)
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    for path, names in shapes.items():
        with _open(path, device) as tensors:
            scaled = set(tensors.keys())
            for name in names:
                stored = tensors.get_tensor(name)
                if name + few_bits.SCALE not in scaled:
                    _assign(transformer, places[name], stored.to(dtype))
                    continue
                scale = tensors.get_tensor(name + few_bits.SCALE)
                _check_few_bits(folder, name, names[name], stored.dtype, tuple(scale.shape))
                if (
                    in_few_bits
                    and stored.dtype == torch.uint8
                    and _is_linear(transformer, places[name])
                ):
                    kept[places[name][0].removesuffix(".weight")] = stored, scale
                else:
                    _assign(transformer, places[name], few_bits.expanded(stored, scale).to(dtype))
    if kept:
        _keep_in_few_bits(transformer, kept)
    if config.tied_head:
        transformer.head.weight = transformer.embedding.weight
    return transformer.eval()


def _keep_in_few_bits(transformer: Transformer, kept: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Put in layers of 4 bits, from the stored matrices and their scales."""
    for joined, of_it in list(packed.joined(transformer)):
        whole = set(of_it) <= set(kept)
        for name, parts in [(joined, of_it)] if whole else [(part, [part]) for part in of_it]:
            if not set(parts) <= set(kept):
                continue
            stored, scale = map(torch.cat, zip(*(kept[part] for part in parts), strict=True))
            bias = packed.joined_bias(transformer, parts)
            packed.put(transformer, name, parts, few_bits.FewBitsLinear(stored, scale, bias))


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model, one or the shards its index names."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        raise ModelError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}: download the weights as safetensors"
        )
    places = read_json(folder / INDEX).get("weight_map", {})
    files = [folder / name for name in sorted(set(places.values()))]
    absent = [path.name for path in files if not path.exists()]
    if absent:
        raise ModelError(
            f"{absent[0]} is not in {folder} though {INDEX} names it "
            f"({len(absent)} of {len(files)} files absent): download the model again"
        )
    return files


def _open(path: Path, device: torch.device) -> Any:
    """Open a safetensors file whose tensors go straight to the device."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device=str(device))
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path} is cut short or no safetensors file ({error}): download it again"
        ) from None


def _shapes(path: Path) -> dict[str, TensorShape]:
    """Return the shapes a file's header gives, without the tables old checkpoints carry along."""
    with _open(path, torch.device("cpu")) as tensors:
        names = set(tensors.keys())
        found = {}
        for name in sorted(names):
            if name.endswith("inv_freq") or name.removesuffix(few_bits.SCALE) in names - {name}:
                continue
            part = tensors.get_slice(name)
            shape = tuple(part.get_shape())
            if name + few_bits.SCALE in names and part.get_dtype() == "U8":
                shape = (*shape[:-1], 2 * shape[-1])
            found[name] = shape
        return found


def _check_tensors(
    folder: Path, family: Family, given: dict[str, TensorShape], expected: dict[str, TensorShape]
) -> None:
    """Raise `ModelError` unless the tensors are exactly those of the model."""
    if missing := [name for name in expected if name not in given]:
        raise ModelError(
            f"the weights in {folder} lack {missing[0]} ({len(missing)} tensors missing): "
            "download the model again"
        )
    if extra := [name for name in given if name not in expected]:
        raise ModelError(
            f"the weights in {folder} have {extra[0]} ({len(extra)} tensors too many), which "
            f"is not in a {family.name} model: it is another architecture"
        )
    if wrong := [name for name in expected if given[name] != expected[name]]:
        raise ModelError(
            f"{wrong[0]} in {folder} has the shape {given[wrong[0]]}, config.json asks for "
            f"{expected[wrong[0]]} ({len(wrong)} tensors misshapen): they are of different models"
        )


def _check_few_bits(
    folder: Path, name: str, shape: TensorShape, dtype: torch.dtype, given: TensorShape
) -> None:
    """Raise `ModelError` unless a matrix is of few bits and each of its groups has a scale."""
    if dtype not in (torch.int8, torch.uint8):
        raise ModelError(
            f"{name} in {folder} has scales, but its numbers are {dtype}: only weights in 4 bits "
            "(uint8) and 8 bits (int8) with scales can be read"
        )
    expected = (*shape[:-1], shape[-1] // few_bits.GROUP)
    if given != expected or shape[-1] % few_bits.GROUP:
        raise ModelError(
            f"{name}{few_bits.SCALE} in {folder} has the shape {given}, a matrix of {shape} needs "
            f"{expected}: download the model again"
        )


def _places(family: Family, config: Config) -> dict[str, Place]:
    """Return which parameter each tensor of a checkpoint is, or which slice of one."""
    places: dict[str, Place] = {}
    for ours, theirs in family.parameter_names(config).items():
        if "{e}" not in theirs:
            places[theirs] = (ours, None)
        elif config.experts is not None:
            each = range(config.experts.count)
            places.update({theirs.replace("{e}", str(e)): (ours, e) for e in each})
    return places


def _parameter(transformer: Transformer, place: Place) -> Tensor:
    """Return the parameter at a place, or the slice."""
    name, number = place
    parameter = transformer.get_parameter(name)
    return parameter if number is None else parameter[number]


def _is_linear(transformer: Transformer, place: Place) -> bool:
    """Say whether a place is the matrix of a linear layer, and not a table or a slice."""
    name, number = place
    return number is None and isinstance(
        transformer.get_submodule(name.rpartition(".")[0]), nn.Linear
    )


def _assign(transformer: Transformer, place: Place, tensor: Tensor) -> None:
    """Put a tensor in the place of a parameter, or of a slice of one, whose memory it then gets."""
    name, number = place
    module, _, last = name.rpartition(".")
    owner = transformer.get_submodule(module)
    if number is not None:
        whole = getattr(owner, last)
        if whole.is_meta:
            whole = torch.empty(whole.shape, dtype=tensor.dtype, device=tensor.device)
        whole[number] = tensor
        tensor = whole
    setattr(owner, last, nn.Parameter(tensor, requires_grad=False))
