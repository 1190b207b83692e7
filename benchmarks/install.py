"""Install dllmark without extras into an empty environment and show that this is enough to detect.

Exits with an error if torch comes along, if the dependencies take more than 160 MB, or if detection
fails.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from hardware import describe

ROOT = Path(__file__).parent.parent
MOST_MEGABYTES = 160


def megabytes(folder: Path) -> float:
    """Return what the files of a folder take on disk."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def run(*command: object, expect: int = 0, text: str = "") -> float:
    """Run a command, insist on its exit status, and return the seconds it took."""
    start = time.perf_counter()
    done = subprocess.run([str(word) for word in command], input=text, text=True,
                          capture_output=True, check=False)  # fmt: skip
    if done.returncode != expect:
        sys.exit(f"{command} ended with {done.returncode}, not {expect}:\n{done.stderr}")
    return time.perf_counter() - start


def main() -> None:
    """Build the environment, measure it and detect in it."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    print(describe())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        venv.create(folder / "env", with_pip=True)
        bin_ = folder / "env" / "bin"
        [packages] = (folder / "env").glob("lib/python*/site-packages")
        pip_itself = megabytes(packages)
        constraints = ROOT / "constraints.txt"
        took = run(bin_ / "pip", "install", "--quiet", "-c", constraints, ROOT)
        own = megabytes(packages / "dllmark")
        size = megabytes(packages) - pip_itself - own
        print(f"installed in {took:.0f} s: dependencies {size:.0f} MB,")
        print(f"dllmark itself {own:.0f} MB, most of which is the embedded model")
        names = sorted(path.name.split("-")[0] for path in packages.glob("*.dist-info"))
        print("packages:", ", ".join(names))
        if "torch" in names or size > MOST_MEGABYTES:
            sys.exit(f"too heavy: dependencies of at most {MOST_MEGABYTES} MB, and no torch")
        dllmark, key = bin_ / "dllmark", folder / "my.key"
        run(dllmark, "--help")
        helps = statistics.median(run(dllmark, "--help") for _ in range(5))
        print(f"dllmark --help: {helps:.2f} s")
        run(dllmark, "keygen", "-o", key)
        text = (ROOT / "LICENSE").read_text(encoding="utf-8")
        took = run(dllmark, "detect", "-", "--key", key, "--fpr", "1e-9", text=text, expect=1)
        print(f"dllmark detect on an unmarked text: not detected, as it should, in {took:.2f} s")


if __name__ == "__main__":
    main()
