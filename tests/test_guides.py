"""The guides are true: their commands run as printed, their tables can be computed again."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from samples import marked_text, plain_text

import dllmark
from dllmark.commands.cli import command_line

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))

TOO_LONG = {"serve", "reproduce", "report", "generate"}
"""Commands that need a model, or never end: their options are checked, and nothing is run."""


def commands(page):
    """Every command of a page's consoles, as arguments."""
    consoles = re.findall(r"^ *```console\n(.*?)```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^ *\$ (.*)$", "".join(consoles), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.fixture
def desk(tmp_path, monkeypatch, key, tokenizer):
    """A folder with the files that the guides speak of."""
    monkeypatch.chdir(tmp_path)
    key.save("my.key")
    Path("text.txt").write_text(plain_text(tokenizer, 100) + marked_text(key, tokenizer, 200))
    lines = [json.dumps({"text": plain_text(tokenizer, 100, seed)}) for seed in range(30)]
    Path("unmarked.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_there_are_the_four_guides():
    names = {guide.stem for guide in GUIDES}
    assert names == {"article-50", "comparing", "deciding", "production"}
    assert all(commands(guide) for guide in GUIDES)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_command_of_a_guide_runs_as_printed(guide, run):
    for program, command, *arguments in commands(guide):
        assert program == "dllmark"
        if command in TOO_LONG:
            parsed = command_line().commands[command].make_context(command, list(arguments))
            assert parsed.params
            continue
        result = run(command, *arguments)
        assert (result.status, result.err) == (0, ""), (command, arguments)
        assert result.out or command == "keys"


def rows(page, after):
    """The cells of the first table behind some words, without its head."""
    table = page.read_text().split(after, 1)[1]
    lines = re.search(r"^\|.*?(?=\n\n)", table, re.DOTALL | re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_base_rates_is_bayes_rule():
    [guide] = [guide for guide in GUIDES if guide.stem == "deciding"]
    for marked, *shares in rows(guide, "if 95 % of marked texts are found"):
        prior = float(marked.removesuffix(" %")) / 100
        for rate, share in zip((0.01, 0.001, 1e-6), shares, strict=True):
            right = 0.95 * prior / (0.95 * prior + rate * (1 - prior))
            assert share == f"{100 * right:.1f} %"


def test_the_capacity_of_a_gpu_follows_from_the_measured_steps():
    [guide] = [guide for guide in GUIDES if guide.stem == "production"]
    measured = (ROOT / "docs" / "results" / "step.md").read_text()
    model = ""
    for name, batch, step, _, texts in rows(guide, "a text takes 128 steps"):
        model = name or model
        table = measured.split(f"| {model} | batch 1, ms |", 1)[1]
        row = re.search(r"our step, expected-bidirectional \|(.*)", table)[1].split("|")
        milliseconds = float(row[{"1": 0, "8": 3, "32": 6}[batch]])
        assert float(step.removesuffix(" ms")) == pytest.approx(milliseconds, rel=0.005)
        assert float(texts) == pytest.approx(int(batch) / (0.128 * milliseconds), abs=0.01)


def test_the_pairs_that_a_text_needs_are_those_of_the_page():
    page = ROOT / "docs" / "how-detection-decides.md"
    from dllmark.detection.power import USUAL, pairs_needed
    from dllmark.detection.stats import one_of_family

    for (_, *cells), keys in zip(rows(page, "with γ ½ and that"), (1, 100, 65536), strict=True):
        rates = [one_of_family(rate, keys) for rate in (0.01, 0.001, 1e-6)]
        assert cells == [str(pairs_needed(0.5, rate, USUAL)) for rate in rates]


def test_the_citation_names_this_version_and_the_papers_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == dllmark.__version__
    assert citation["cff-version"] == "1.2.0" and citation["authors"] and citation["message"]
    [paper] = citation["references"]
    page = (ROOT / "docs" / "citing.md").read_text()
    for author in paper["authors"]:
        assert f"{author['family-names']}, {author['given-names']}" in page
    assert paper["url"].removeprefix("https://") in page and paper["title"][:5] in page
    assert f"version = {{{dllmark.__version__}}}" in page
