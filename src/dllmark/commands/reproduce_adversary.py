"""What the attacks of `dllmark reproduce` may use: paraphrasers, WordNet, and the model itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dllmark.commands.attack_models import API_KEY

if TYPE_CHECKING:
    from dllmark.attacks.endpoint import GivenUp
    from dllmark.attacks.records import Record
    from dllmark.experiments.robustness import Adversary
    from dllmark.experiments.specs import Paraphraser
    from dllmark.models.loading import Model

MOST_REQUESTS = 20_000
"""To the endpoint in one run; the next goes on."""

PATIENCE = 600.0
"""Seconds to wait for an answer: many texts are asked for, maybe of a model on a CPU."""


def make_adversary(
    load: Callable[[], Model],
    endpoint: str | None,
    endpoint_model: str,
    dipper: str | None,
    wordnet: Path | None,
) -> Adversary:
    """Return what attacks may use, None for what is not given; what cannot work shows here."""
    from dllmark.attacks.synonyms import read_wordnet
    from dllmark.experiments.robustness import Adversary

    return Adversary(
        None if wordnet is None else read_wordnet(wordnet),
        load,
        {
            "paraphrase": _by_endpoint(endpoint, endpoint_model) if endpoint else None,
            "dipper": _by_dipper(dipper) if dipper else None,
        },
    )


def _by_endpoint(url: str, model: str) -> Paraphraser:
    """Return the paraphraser behind an endpoint; its API key is in DLLMARK_API_KEY."""
    from dllmark.attacks.endpoint import Endpoint
    from dllmark.experiments.specs import Paraphraser

    api_key = os.environ.get(API_KEY) or None
    server = Endpoint(url, model, MOST_REQUESTS, api_key=api_key, timeout=PATIENCE)
    return Paraphraser(
        {"name": "paraphrase", "model": model},
        lambda records: server.paraphrase(record.text for record in records),
    )


def _by_dipper(source: str) -> Paraphraser:
    """Return Dipper, with the paper's settings."""
    from dllmark.attacks.dipper import Dipper, check_source
    from dllmark.experiments.specs import Paraphraser

    check_source(source)

    def answers(records: list[Record]) -> Iterator[tuple[int, str | GivenUp]]:
        if records:
            dipper = Dipper(source)
            for number, record in enumerate(records):
                yield number, dipper.paraphrase(record.text, seed=record.line)

    return Paraphraser({"name": "dipper", "model": source}, answers)
