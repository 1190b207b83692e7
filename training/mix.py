"""Write weights between two sets of them: old + share x (new - old).

Usage: python training/mix.py old.safetensors new.safetensors --share 0.7 --out mixed.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main() -> None:
    """Parse the command line, mix and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--share", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    old, new = load_file(arguments.old), load_file(arguments.new)
    mixed = {
        name: torch.lerp(weight.float(), new[name].float(), arguments.share).to(weight.dtype)
        for name, weight in old.items()
    }
    save_file(mixed, arguments.out, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
