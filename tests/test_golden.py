"""The same key and seed give the same texts and scores as they gave before."""

from __future__ import annotations

import json

import golden

import dllmark


def test_texts_and_scores_are_those_of_earlier_versions(key: dllmark.WatermarkKey) -> None:
    assert golden.texts(key) == json.loads(golden.FILE.read_text())
