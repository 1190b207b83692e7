"""The page on experiments says how many texts of a prompt each of them takes."""

import re
from pathlib import Path

import pytest

from dllmark.experiments import specs
from dllmark.experiments.lab import Lab
from dllmark.experiments.rivals.compare import rivals
from dllmark.experiments.robustness import Adversary, attacks
from dllmark.experiments.settings import Protocol

PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"
KEYS = 8


def numbers(name):
    """The numbers that the page's row of an experiment gives, the first first."""
    [row] = re.findall(rf"^\| `{name}` \|.*?\| ([^|]*)\|[^|]*\|$", PAGE.read_text(), re.MULTILINE)
    found = re.findall(r"\b\d[\d,]*\b(?! keys)", row)
    return [int(number.replace(",", "")) for number in found]


@pytest.fixture
def settings(monkeypatch, tmp_path, tokenizer):
    """The settings of an experiment that has no prompts, unmarked ones among them."""

    def of(experiment):
        asked = set()

        def complete(lab, wanted, any_length=False):
            asked.update(one for setting in wanted for one in (setting, setting.unmarked))

        monkeypatch.setattr(Lab, "complete", complete)
        experiment(Lab("none", tokenizer, [], tmp_path, Protocol(), None))
        return asked

    return of


@pytest.mark.parametrize("name", ["table1", "table3", "frontier", "lengths"])
def test_a_table_takes_as_many_as_its_row_says(settings, name):
    assert len(settings(getattr(specs, name))) == numbers(name)[0]


def test_the_table_of_attacks_takes_as_many(settings):
    assert [len(settings(lambda lab: specs.table2(lab, {})))] == numbers("table2")


def test_the_attacks_take_as_many_for_each_key(settings):
    asked = settings(lambda lab: attacks(lab, Adversary(), KEYS, "low_confidence"))
    marked = {setting for setting in asked if setting.strategy}
    assert [len(asked - marked), len(marked) // KEYS] == numbers("attacks")


def test_the_rivals_take_as_many_in_all_and_with_quick(settings):
    whole, quick = (
        settings(lambda lab, quick=quick: list(rivals(lab, KEYS, "low_confidence", quick)))
        for quick in (False, True)
    )
    assert [len(whole), len(quick)] == numbers("rivals")
