"""Write weights between others, or beyond them: the sum of each set times its share.

Usage: python training/mix.py old.safetensors=0.4 new.safetensors=0.6 --out mixed.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main() -> None:
    """Parse the command line, mix and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="FILE=SHARE", help="the shares add up to 1")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    parts = [(load_file(file), float(share)) for file, share in
             (part.rsplit("=", 1) for part in arguments.parts)]  # fmt: skip
    if abs(sum(share for _, share in parts) - 1) > 1e-6:
        parser.error("the shares must add up to 1")
    mixed = {
        name: sum(share * weights[name].float() for weights, share in parts).to(torch.bfloat16)
        for name in parts[0][0]
    }
    save_file(mixed, arguments.out, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
