"""Record the page's example, picture it, and export the page for any web host.

python docs/make_page.py record                 # src/dllmark/server/page/example.json
python docs/make_page.py pictures               # docs/page/share.png and loop.webp
python docs/make_page.py export site --url https://example.org/dllmark/
"""

from __future__ import annotations

import argparse
import functools
import html
import http.server
import io
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllmark.files import atomic_write
from dllmark.server.app import PAGE, make_app
from dllmark.server.guard import SAFE_HEADERS

if TYPE_CHECKING:
    from dllmark.models.loading import Model

EXAMPLE = PAGE / "example.json"
PICTURES = Path(__file__).parent / "page"
SHARE, LOOP = "share.png", "loop.webp"

PROMPT = "Write a short story about a lighthouse keeper."
SECRET = b"no secret at all"
"""The key of the recording. It marks nothing else, so it may be known; no recording holds it."""

KEPT = ("verdict", "strength", "p_value", "pairs", "green", "gamma")
"""What the page shows of a detection while it plays."""

MARKER = "<!-- the export puts the share picture here -->"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def record(model: Model, prompt: str = PROMPT, tokens: int = 128, seed: int = 1) -> dict[str, Any]:
    """Return what /v1/generate streams for both texts, without what tells of the key."""
    from starlette.testclient import TestClient

    from dllmark.relation.key import Secret, WatermarkKey
    from dllmark.server.service import Service

    key = WatermarkKey(Secret(SECRET), 0.5, model.tokenizer.id)
    service = Service([key], model.tokenizer, model)
    body = {"prompt": prompt, "tokens": tokens, "seed": seed, "suppress_end": True}
    with TestClient(make_app(service), base_url="http://localhost") as client:
        response = client.post("/v1/generate", json={**body, "compare": True, "stream": True})
    events = [_kept(name, data) for name, data in _events(response.text)]
    return {"prompt": prompt, "model": service.model_name, "events": events}


def _events(stream: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the data of each server-sent event."""
    for block in stream.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields:
            yield fields["event"], json.loads(fields["data"])


def _kept(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return what the page needs of an event."""
    if name == "start":
        return {"name": name, "data": {part: data[part] for part in ("tokens", "steps")}}
    number = {"number": data["number"]} if name == "step" else {}
    texts = {**_of_text(data), "unmarked": _of_text(data["unmarked"])}
    return {"name": name, "data": {**number, **texts}}


def _of_text(data: dict[str, Any]) -> dict[str, Any]:
    """Return what the page needs of one text, after a step or in the end."""
    found = data["detection"]
    detection = {name: found[name] for name in KEPT if found.get(name) is not None}
    detection["p_value"] = float(f"{found['p_value']:.3g}")
    if "tokens" in found:
        marks = [{"end": token["end"], "mark": token["mark"]} for token in found["tokens"]]
        return {"text": data["text"], "detection": {**detection, "tokens": marks}}
    return {"revealed": data["revealed"], "marks": data["marks"], "detection": detection}


def export(folder: Path, url: str) -> None:
    """Write the page with the example alone, which needs no server, to be found at an address."""
    url = url.rstrip("/") + "/"
    shutil.copytree(PAGE, folder / "page", ignore=shutil.ignore_patterns("*.html", "docs.js"))
    for picture in (SHARE, LOOP):
        shutil.copyfile(PICTURES / picture, folder / picture)
    policy, _ = SAFE_HEADERS["Content-Security-Policy"].split("; frame-ancestors")
    tags = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f'<link rel="canonical" href="{html.escape(url)}">',
        f'<meta property="og:url" content="{html.escape(url)}">',
        f'<meta property="og:image" content="{html.escape(url)}{SHARE}">',
        '<meta property="og:image:width" content="1200">',
        '<meta property="og:image:height" content="630">',
        '<meta property="og:image:alt" content="Two texts, one with many more green pairs">',
        '<meta name="twitter:card" content="summary_large_image">',
    ]
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    page = page.replace('<html lang="en">', '<html lang="en" data-static>')
    page = page.replace(MARKER, "\n  ".join(tags))
    (folder / "index.html").write_text(page, encoding="utf-8")


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """Serve a folder as any web host does, on this machine; yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def picture() -> None:
    """Write the share picture and the loop, from the recorded example as the page shows it."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    steps = json.loads(EXAMPLE.read_text(encoding="utf-8"))["events"][0]["data"]["steps"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for name in (SHARE, LOOP):
            (PICTURES / name).touch()
        export(Path(folder), "http://127.0.0.1/")
        browser = playwright.chromium.launch(executable_path=BROWSER)
        with hosted(Path(folder)) as url:
            page = browser.new_page(
                viewport={"width": 1200, "height": 630}, reduced_motion="reduce", bypass_csp=True
            )
            page.goto(f"{url}#step={steps}")
            page.add_style_tag(path=PICTURES / "picture.css")
            page.locator("#marked .token").first.wait_for()
            page.screenshot(path=PICTURES / SHARE)
            frames = []
            for step in range(0, steps + 1, 2):
                page.locator("#replay").evaluate(
                    "(slider, step) => { slider.value = step;"
                    " slider.dispatchEvent(new Event('input')); }",
                    step,
                )
                frame = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                frames.append(frame.resize((800, 420), Image.Resampling.LANCZOS))
        browser.close()
    waits = [180] * (len(frames) - 1) + [4000]
    frames[0].save(
        PICTURES / LOOP, save_all=True, append_images=frames[1:], duration=waits, loop=0,
        quality=60, method=6,
    )  # fmt: skip


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write the example with the embedded model")
    recording.add_argument("--prompt", default=PROMPT)
    recording.add_argument("--tokens", type=int, default=128)
    recording.add_argument("--seed", type=int, default=1)
    commands.add_parser("pictures", help="draw the share picture and the loop; needs Chromium")
    exporting = commands.add_parser("export", help="write the page for a web host")
    exporting.add_argument("folder", type=Path, help="a folder that does not exist yet")
    exporting.add_argument("--url", required=True, help="where the page will be")
    given = parser.parse_args()
    if given.command == "export" and given.folder.exists():
        parser.error(f"{given.folder} exists: give a folder that does not, or remove it")
    if given.command == "pictures" and not BROWSER:
        parser.error("no Chromium here: install it, or put one on the PATH")
    if given.command == "record":
        from dllmark import load_model

        example = record(load_model("embedded"), given.prompt, given.tokens, given.seed)
        written = json.dumps(example, ensure_ascii=False, separators=(",", ":")) + "\n"
        with atomic_write(EXAMPLE) as file:
            file.write(written.encode())
    elif given.command == "pictures":
        picture()
    else:
        export(given.folder, given.url)


if __name__ == "__main__":
    main()
