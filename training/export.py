"""Write a checkpoint of train.py as the model that ships: safetensors and config.json.

Usage: python training/export.py run/checkpoint.pt --out src/dllmark/models/embedded
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from dllmark.models.families import EMBEDDED
from dllmark.models.transformer import Config


def main() -> None:
    """Convert the weights to bfloat16 under LLaDA's names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    state = torch.load(arguments.checkpoint, map_location="cpu")
    config = Config(**state["config"])
    weights = {
        theirs: state["model"][ours].to(torch.bfloat16).contiguous()
        for ours, theirs in EMBEDDED.parameter_names(config).items()
    }
    save_file(weights, arguments.out / "model.safetensors", metadata={"format": "pt"})
    numbers = {theirs: getattr(config, ours) for ours, theirs in EMBEDDED.sizes.items()}
    special = {"mask_token_id": 2, "pad_token_id": 0}
    record = {"model_type": EMBEDDED.model_type, **numbers, **special, "dtype": "bfloat16"}
    (arguments.out / "config.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
