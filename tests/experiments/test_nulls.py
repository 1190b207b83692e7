"""The rates of people's texts are those of a count by hand, and near what is promised."""

import numpy as np
import pytest

from dllmark.detection.detector import Detector
from dllmark.errors import InputError
from dllmark.experiments import nulls as module
from dllmark.experiments.nulls import nulls
from dllmark.relation.key import Secret, WatermarkKey


def random_texts(tokenizer, count, length):
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, tokenizer.vocab_size, (count, length))
    return [tokenizer.decode(row) for row in ids]


def test_the_rates_are_the_shares_of_small_p_values(tokenizer, monkeypatch):
    keys = [WatermarkKey(Secret(bytes([n] * 16)), 0.5, tokenizer.id) for n in range(3)]
    waiting = iter(keys)
    monkeypatch.setattr(module.WatermarkKey, "generate", lambda _: next(waiting))
    texts = random_texts(tokenizer, 40, 60)
    report = nulls(tokenizer, {"random": texts}, keys=3)
    assert [(row["tokens"], row["scoring"]) for row in report.rows][:4] == [
        (25, "unique"), (25, "all"), (50, "unique"), (50, "all")]  # fmt: skip
    cut = [tokenizer.encode(text)[:50] for text in texts]
    p = [Detector(key, tokenizer).detect(ids).p_value for key in keys for ids in cut]
    row = report.rows[2]
    assert row["observed at 5 %"] == pytest.approx(100 * np.mean([one <= 0.05 for one in p]))
    assert row["observed at 5 %, low"] <= row["observed at 5 %"] <= row["observed at 5 %, high"]


def test_over_random_keys_no_rate_is_above_the_promised_one(tokenizer):
    [row, *_] = nulls(tokenizer, {"random": random_texts(tokenizer, 200, 30)}, keys=10).rows
    assert row["observed at 5 %, low"] <= 5
    assert row["observed at 1 %, low"] <= 1


def test_at_least_one_key_is_needed(tokenizer):
    with pytest.raises(InputError, match="at least 1 key"):
        nulls(tokenizer, {}, keys=0)


def test_the_command_scores_documents_and_answers(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c4.jsonl").write_text('{"text": "%s"}\n' % ("A word and another. " * 20))
    arguments = ["--c4", "c4.jsonl", "--out", "out", "--keys", "2", "--json"]
    result = run("reproduce", "nulls", *arguments)
    assert result.status == 0
    assert {row["texts of"] for row in result.json["rows"]} == {"C4 documents"}
