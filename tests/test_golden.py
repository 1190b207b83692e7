"""The same key and seed give the same texts and scores as they gave before."""

from __future__ import annotations

import json
from pathlib import Path

import golden

import dllmark


def test_texts_and_scores_are_those_of_earlier_versions(key: dllmark.WatermarkKey) -> None:
    expected = json.loads((Path(golden.__file__).parent / "golden.json").read_text())
    assert golden.texts(key, dllmark.load_model("embedded")) == expected
