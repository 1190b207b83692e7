"""Do what somebody does who has just cloned this: `make demo`, then what it prints, word for word.

python3 .ci/stranger.py

The commands under "Now try:" run in a shell, one after the other, as they are printed. The last one
serves a page: the page and its files are fetched, and a text is checked there. Anything that does
not work as printed ends this with an error. It needs only Python and make, and leaves no files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]
VERDICTS = (0, 1, 3)
"""How `detect` ends: watermarked, not detected, too short. A small model's text may be any."""

SECONDS = 600
"""How long the server may take to load its model on a busy machine."""


def main() -> None:
    """Follow the demonstration's advice."""
    before = set(os.listdir(ROOT))
    try:
        commands, page = advice(run("make demo"))
        *typed, serve = commands
        for command in typed:
            run(command, VERDICTS if " detect " in command else (0,))
        [text] = [ROOT / command.split()[-1] for command in typed if ">" in command]
        visit(serve, page, text.read_text())
    finally:
        for name in set(os.listdir(ROOT)) - before:
            if (ROOT / name).is_file():
                (ROOT / name).unlink()


def run(command: str, allowed: tuple[int, ...] = (0,)) -> str:
    """Run a command as a user types it, show and return its output, and check how it ends."""
    print(f"$ {command}", flush=True)
    done = subprocess.run(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode not in allowed:
        sys.exit(f"{command}: exit status {done.returncode}")
    return done.stdout


def advice(printed: str) -> tuple[list[str], str]:
    """Return the commands that a demonstration tells to try, and the address to open."""
    after = printed.partition("Now try:\n")[2]
    commands = re.findall(r"^  (\S.*)$", after, re.M)
    address = re.search(r"open (http://\S+)", after)
    if len(commands) < 4 or not address:
        sys.exit("the demonstration does not say what to try next")
    return commands, address[1]


def visit(serve: str, page: str, text: str) -> None:
    """Start the server, open its page with all that belongs to it, and check a text."""
    print(f"$ {serve} &", flush=True)
    server = subprocess.Popen(shlex.split(serve), cwd=ROOT)
    try:
        parts = re.findall(r'(?:src|href)="([^"#]+)"', opened(server, page))
        if not any(part.endswith(".js") for part in parts):
            sys.exit("the page has no script")
        for part in (part for part in parts if ":" not in part):
            fetch(urljoin(page, part))
        asked = json.dumps({"text": text, "explain": True}).encode()
        answer = fetch(Request(f"{page}/v1/detect", asked, {"Content-Type": "application/json"}))
        [result] = json.loads(answer)["results"]
        print(f"the page's verdict: {result['verdict']}, p {result['p_value']:.3g}")
        if not result["tokens"]:
            sys.exit("the page colours no tokens")
    finally:
        server.send_signal(signal.SIGINT)
        if server.wait(60) != 0:
            sys.exit(f"{serve}: exit status {server.returncode} after Ctrl-C")


def opened(server: subprocess.Popen[bytes], page: str) -> str:
    """Return the page once the server answers."""
    for _ in range(SECONDS):
        if server.poll() is not None:
            sys.exit(f"the server ended with exit status {server.returncode}")
        try:
            return fetch(page)
        except OSError:
            time.sleep(1)
    sys.exit(f"{page} does not answer")


def fetch(what: str | Request) -> str:
    """Return what an address answers; an error status is an error."""
    with urlopen(what, timeout=60) as answer:
        return answer.read().decode()


if __name__ == "__main__":
    main()
