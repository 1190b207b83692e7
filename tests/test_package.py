"""The package as its users meet it: the README is true, the core is light, the docs are current."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dllmark

ROOT = Path(__file__).parent.parent


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_library_example_of_the_readme_detects_what_it_marked(capsys):
    [example] = python_blocks(ROOT / "README.md")
    assert len(example.splitlines()) <= 25
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("watermarked")


def test_the_example_of_the_page_on_the_watermark_runs(capsys):
    [example] = python_blocks(ROOT / "docs" / "how-the-watermark-works.md")
    exec(compile(example, "how-the-watermark-works.md", "exec"), {})
    assert capsys.readouterr().out == "watermarked\n"


def test_the_key_file_that_the_documentation_shows_is_one(tmp_path):
    page = (ROOT / "docs" / "key-file.md").read_text(encoding="utf-8")
    shown = re.search(r"```json\n(.*?)```", page, re.DOTALL)[1]
    path = tmp_path / "shown.key"
    path.write_text(shown)
    path.chmod(0o600)
    key = dllmark.WatermarkKey.load(path)
    assert key.tokenizer == dllmark.load_tokenizer("embedded").id


def test_the_package_is_smaller_than_what_pypi_takes():
    package = ROOT / "src" / "dllmark"
    files = [path for path in package.rglob("*") if path.suffix != ".pyc" and path.is_file()]
    assert 50e6 < sum(path.stat().st_size for path in files) < 95e6  # it takes 100 MB, compressed


def test_the_licence_of_the_model_lies_beside_it_and_is_declared():
    notice = ROOT / "src" / "dllmark" / "models" / "embedded" / "NOTICE"
    assert all(said in notice.read_text() for said in ("SmolLM2", "Apache License 2.0", "changed"))
    declared = (ROOT / "pyproject.toml").read_text()
    assert f'license-files = ["LICENSE", "{notice.relative_to(ROOT).as_posix()}"]' in declared


def test_every_public_name_is_there_described_and_completed():
    assert {*dllmark.__all__, "__version__"} <= {*dir(dllmark)}
    for name in dllmark.__all__:
        assert getattr(dllmark, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dllmark.nonsense


def printed(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


WITHOUT_TORCH = """
import sys
sys.modules['torch'] = None
import dllmark
"""


def test_detection_works_where_torch_is_not_installed():
    detect = """
from dllmark import *
key = WatermarkKey.generate(load_tokenizer('embedded').id)
print(Detector(key).detect('a few words').verdict.value)
print('Watermark' in globals(), 'Watermark' in dir(dllmark), hasattr(dllmark, 'Watermark'))
print([name for name in dllmark.__all__ if not hasattr(dllmark, name)])
"""
    assert printed(WITHOUT_TORCH + detect) == ["too short", "False False False", "[]"]


@pytest.mark.parametrize(
    ("use", "error"),
    [
        ("from dllmark import Watermark", "ImportError"),
        ("from dllmark import Detector, Watermark", "ImportError"),
        ("dllmark.Watermark", "AttributeError"),
        ("from dllmark import Watermark", "dllmark.DllmarkError"),
        ("dllmark.Watermark", "dllmark.DllmarkError"),
    ],
)
def test_what_needs_torch_says_so_where_it_is_not_installed(use, error):
    code = f"{WITHOUT_TORCH}try:\n    {use}\nexcept {error} as error:\n    print(error)"
    assert printed(code) == ["Watermark needs torch: pip install 'dllmark[torch]'"]


def test_detection_does_not_load_torch_even_where_it_is_installed():
    code = "import sys, dllmark.detection.detector as _, dllmark.commands.cli as _;"
    code += "print('torch' in sys.modules)"
    assert printed(code) == ["False"]


def test_the_page_of_commands_is_what_the_commands_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_cli

    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == make_cli.page()


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> list[str]:
    """What a browser is sent to for each heading, as GitHub names it."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in shown]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page):
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", prose(page)):
        if "://" in target:
            continue
        linked = page.parent / target if target else page
        if ROOT / "training" in linked.resolve().parents and not (ROOT / "training").exists():
            continue  # a source distribution has none
        assert linked.exists(), f"links to {target}"
        assert not heading or heading in anchors(linked), f"links to {target}#{heading}"
