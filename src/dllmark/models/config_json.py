"""From config.json to `Config`: the sizes of a model, or why it is not one we can compute.

A field that changes the arithmetic has a value we support or is refused. Other fields are not read
by the published code either.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from dllmark.errors import ModelError
from dllmark.models.families import Family
from dllmark.models.transformer import Config

ROPE_FIELDS = ("rope_theta", "partial_rotary_factor")
"""What `rope_parameters` may have in the place of config.json itself."""


def read_config(path: Path, family: Family, record: dict[str, Any]) -> Config:
    """Return the numbers of a model from the entries of its config.json."""
    record = _with_rope(path, _with_defaults(family, record))
    for size in (family.sizes[entry.name] for entry in fields(Config) if entry.default is MISSING):
        value = record.get(size)
        if not isinstance(value, int) or value < 1:
            raise ModelError(
                f"{path} gives no {size}, or not a whole number: a {family.name} model needs it"
            )
    for name in family.sizes.values():
        if name in record and not isinstance(record[name], int | float):
            raise ModelError(f"{path} gives a {name} that is not a number")
    for name, (supported, default) in family.arithmetic.items():
        value = record.get(name, default)
        if value != supported:
            said = (
                f"says {name} {value}" if name in record else f"has no {name}, which means {value}"
            )
            raise ModelError(
                f"{path} {said}: this program computes {family.name} models with {supported} only"
            )
    for ours, name in family.expert_sizes.items():
        value = record.get(name)
        if not isinstance(value, int | float if ours == "scale" else int) or value < 0:
            raise ModelError(f"{path} gives no {name}, or not a number: {family.name} needs it")
    config = family.config(record)
    if config.experts is not None:
        config.experts.check()
    return config


def _with_defaults(family: Family, record: dict[str, Any]) -> dict[str, Any]:
    """Return the entries with those that follow from others where they are absent or null.

    LLaDA's embedding has `vocab_size` rows unless it says, and there is a key for each head.
    """
    defaults = {}
    if "vocab_size" in record:
        defaults["embedding_size"] = record["vocab_size"]
    if (heads := family.sizes["heads"]) in record:
        defaults[family.sizes["kv_heads"]] = record[heads]
    return {**defaults, **record}


def _with_rope(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Return the entries with those of `rope_parameters`, where newer files have the rotation."""
    for name in ("rope_scaling", "rope_parameters"):
        rope = record.get(name) or {}
        if not isinstance(rope, dict):
            raise ModelError(f"{path} gives a {name} that is not an object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ModelError(
                f"{path} asks in {name} for the rotation {kind}: only the default one is supported"
            )
        record = {**record, **{key: rope[key] for key in ROPE_FIELDS if key in rope}}
    return record
