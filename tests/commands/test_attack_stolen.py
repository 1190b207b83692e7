"""`dllmark attack steal`, `forge` and `scrub`: from texts to forged ones, and never a key."""

import json

import pytest
from thieves import texts_of

from dllmark.detection.detector import Detector
from dllmark.relation.greenlist import HashedGreenList


def save(path, texts, tokenizer):
    path.write_text("".join(json.dumps({"text": tokenizer.decode(ids)}) + "\n" for ids in texts))
    return path


def texts_in(path):
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


@pytest.fixture
def marked(key, tokenizer, tmp_path):
    green = HashedGreenList(key, tokenizer.vocab_size)
    return save(tmp_path / "marked.jsonl", texts_of(tokenizer, 150, 1, green), tokenizer)


@pytest.fixture
def unmarked(tokenizer, tmp_path):
    return save(tmp_path / "unmarked.jsonl", texts_of(tokenizer, 150, 2), tokenizer)


@pytest.fixture
def stolen(run, marked, unmarked, tmp_path):
    path = tmp_path / "colours.npz"
    result = run("attack", "steal", marked, "-o", path, "--unmarked", unmarked, "--json")
    assert result.json["texts"] == result.json["unmarked"] == 150
    assert 0 < result.json["believed green"] < result.json["pairs"] <= 1600
    return path


def test_what_is_stolen_forges_and_scrubs(run, key, tokenizer, marked, unmarked, stolen, tmp_path):
    forged, scrubbed = tmp_path / "forged.jsonl", tmp_path / "scrubbed.jsonl"
    result = run("attack", "forge", unmarked, "-o", forged, "--estimates", stolen, "--texts", 5,
                 "--tokens", 100, "--json")  # fmt: skip
    assert result.json["attack"] == {"name": "forge", "tokens": 100, "seed": 0}
    detector = Detector(key, tokenizer)
    assert max(one.p_value for one in detector.detect_many(texts_in(forged))) < 1e-4
    save(marked, [tokenizer.encode(text) for text in texts_in(marked)[:3]], tokenizer)
    result = run("attack", "scrub", marked, "-o", scrubbed, "--estimates", stolen,
                 "--unmarked", unmarked, "--ratio", 0.4, "--json")  # fmt: skip
    assert result.json["texts"] == 3
    before, after = (detector.detect_many(texts_in(path)) for path in (marked, scrubbed))
    assert all(new.z < old.z - 3 for old, new in zip(before, after, strict=True))


def test_the_same_seed_forges_the_same(run, unmarked, stolen, tmp_path):
    texts = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run("attack", "forge", unmarked, "-o", tmp_path / name, "--estimates", stolen,
            "--seed", seed, "--texts", 1)  # fmt: skip
        texts.append(texts_in(tmp_path / name))
    assert texts[0] == texts[1] != texts[2]


def test_stealing_needs_no_unmarked_texts(run, marked, tmp_path):
    result = run("attack", "steal", marked, "-o", tmp_path / "e.npz")
    assert result.status == 0
    assert "from 150 marked and 0 unmarked texts" in result.err


def test_too_few_texts_leave_no_file(run, tmp_path):
    (tmp_path / "few.jsonl").write_text('{"text": "One text is not enough."}\n')
    result = run("attack", "steal", tmp_path / "few.jsonl", "-o", tmp_path / "e.npz")
    assert result.status == 2
    assert "give at least 10 of one key" in result.err
    assert not (tmp_path / "e.npz").exists()


@pytest.mark.parametrize("verb", ["forge", "scrub"])
def test_what_is_no_estimates_is_refused(run, unmarked, tmp_path, verb):
    needed = ["--unmarked", unmarked] if verb == "scrub" else []
    result = run("attack", verb, unmarked, "-o", tmp_path / "out.jsonl",
                 "--estimates", unmarked, *needed)  # fmt: skip
    assert result.status == 2
    assert "holds no estimates" in result.err
    assert not (tmp_path / "out.jsonl").exists()


def test_another_tokenizer_is_refused(run, small_tokenizer, unmarked, stolen, tmp_path):
    other = tmp_path / "tokenizer.json"
    other.write_text(small_tokenizer.definition())
    result = run("attack", "forge", unmarked, "-o", tmp_path / "out.jsonl",
                 "--estimates", stolen, "--tokenizer", other)  # fmt: skip
    assert result.status == 2
    assert "was made with the tokenizer embedded" in result.err


def test_the_input_is_never_the_output(run, marked, unmarked, stolen):
    for verb, *options in (("steal",), ("forge", "--estimates", stolen)):
        result = run("attack", verb, marked, "-o", marked, *options)
        assert result.status == 2
        assert "is the input" in result.err
