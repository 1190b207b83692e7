"""`dllmark attack redenoise`, `paraphrase --times` and `synonyms`: what they write, and again."""

import json

import numpy as np
import pytest
from chat_server import send
from checkpoints import dream_config, llada2_config, llada_config, sdar_config, write_checkpoint
from small_wordnet import SYNONYMS, write_wordnet

from dllmark.attacks.endpoint import Endpoint
from dllmark.models import loading
from dllmark.relation.tokenizer import load_tokenizer

TEXTS = ["The grass is green.", "red lists 2026", "", "in 2026, and the red list", "green or red"]
CONFIGS = {"llada": llada_config, "dream": dream_config, "llada2": llada2_config,
           "sdar": sdar_config}  # fmt: skip


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(one in rest for one in part)


@pytest.fixture
def source(tmp_path):
    records = [{"text": text, "ids": [1], "n": number} for number, text in enumerate(TEXTS)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def checkpoint(tmp_path):
    """Write a small random model of a family, and return its folder."""

    def write(config=llada_config):
        folder = tmp_path / "model"
        folder.mkdir()
        write_checkpoint(folder, config())
        return folder

    return write


@pytest.fixture
def redenoise(run, source, tmp_path):
    """Run the attack on five texts."""

    def redenoise(model, *options):
        where = ["-o", tmp_path / "out.jsonl", "--model", model]
        return run("attack", "redenoise", source, *where, *options)

    return redenoise


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_share_of_the_tokens_is_written_by_a_model_of_any_family(
    one_core, redenoise, checkpoint, tmp_path, config
):
    folder = checkpoint(config)
    options = ["--ratio", "0.4", "--temperature", "0.5", "--batch", "2", "--device", "cpu"]
    result = redenoise(folder, *options, "--seed", "3")
    assert (result.status, result.err) == (
        0,
        f"{tmp_path / 'out.jsonl'}: 5 written, 0 already there\n",
    ), result.err
    tokenizer = load_tokenizer(str(folder))
    for number, record in enumerate(read(tmp_path / "out.jsonl")):
        attack = record["attack"]
        settings = {"name": "redenoise", "ratio": 0.4, "model": str(folder), "temperature": 0.5,
                    "batch": 2, "seed": 3, "line": number + 1}  # fmt: skip
        assert {name: attack[name] for name in settings} == settings
        assert (record["n"], "ids" in record) == (number, False)
        ids = tokenizer.encode(TEXTS[number])
        masked = np.random.default_rng([3, number + 1]).permutation(len(ids))[
            : round(0.4 * len(ids))
        ]
        kept = "".join(tokenizer.decode([id_]) for id_ in np.delete(ids, masked))
        assert is_subsequence(kept, record["text"])
        assert (record["text"] == TEXTS[number]) == (len(masked) == 0)


def test_a_run_cut_off_anywhere_fills_the_rest_alike(one_core, redenoise, checkpoint, tmp_path):
    folder, output = checkpoint(), tmp_path / "out.jsonl"
    redenoise(folder, "--batch", "2")
    whole = output.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in (0, ends[0], ends[1], ends[2] + 7, ends[3]):
        output.write_bytes(whole[:cut])
        assert redenoise(folder, "--batch", "2").status == 0
        assert output.read_bytes() == whole
    other = redenoise(folder, "--batch", "4")
    assert (other.status, output.read_bytes()) == (2, whole)
    assert f"{output}:1 is not of this run" in other.err


def test_nothing_is_loaded_where_nothing_is_missing(
    one_core, redenoise, checkpoint, monkeypatch, tmp_path
):
    folder = checkpoint()
    redenoise(folder)
    monkeypatch.setattr(loading, "load_model", None)
    result = redenoise(folder, "--json").json
    assert (result["texts"], result["already there"], result["attack"]["ratio"]) == (0, 5, 0.3)


REFUSED = {
    "a ratio": (["--ratio", "1.1"], "from 0 to 1; got 1.1"),
    "a temperature": (["--temperature", "-1"], "temperature is 0, which takes the likeliest"),
    "a seed": (["--seed", "-1"], "seed is at least 0; got -1"),
    "a batch": (["--batch", "0"], "greater than or equal to 1"),
    "a device": (["--device", "toaster"], "the device toaster is not available here"),
    "a model": (["--model", "no/where/there"], "no/where/there"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_told_and_leaves_no_file(
    redenoise, checkpoint, tmp_path, options, reason
):
    result = redenoise(checkpoint(), *options)
    assert (result.status, result.out, (tmp_path / "out.jsonl").exists()) == (2, "", False)
    assert reason in result.err


def test_a_text_longer_than_the_model_takes_is_named(redenoise, checkpoint, source, tmp_path):
    with source.open("a") as file:
        file.write(json.dumps("2026 " * 100) + "\n")
    result = redenoise(checkpoint())
    assert (result.status, (tmp_path / "out.jsonl").exists()) == (2, False)
    assert "line 6 has " in result.err
    assert "the model takes 64: cut it into shorter texts" in result.err


@pytest.fixture
def wash(run, chat_server, source, tmp_path):
    """Have the texts paraphrased by the chat server, which writes in capitals."""

    def wash(*options):
        where = ["--endpoint", chat_server.url, "--model", "m", "--concurrency", "1"]
        return run("attack", "paraphrase", source, "-o", tmp_path / "washed.jsonl", *where,
                   *options)  # fmt: skip

    return wash


def stars(handler, text):
    """Answer with a star more than the text has."""
    body = json.dumps({"choices": [{"message": {"content": f"{text}*"}}]}).encode()
    send(body=body)(handler, text)


def test_each_round_paraphrases_the_one_before_and_is_kept(wash, chat_server, tmp_path):
    chat_server.will(*[stars] * 12)
    reports = wash("--times", "3", "--json").records
    names = ["washed.round1.jsonl", "washed.round2.jsonl", "washed.jsonl"]
    assert [report["path"] for report in reports] == [str(tmp_path / name) for name in names]
    for number, name in enumerate(names, 1):
        records = read(tmp_path / name)
        assert [record["text"] for record in records] == [
            text + "*" * number if text else "" for text in TEXTS
        ]
        depth, attack = 0, records[0]["attack"]
        while attack:
            depth, attack = depth + 1, attack.get("after")
        assert depth == number
    assert len(chat_server.texts) == 12  # four texts, three times; the empty one costs nothing
    assert len({path.name for path in tmp_path.glob("washed*")}) == 3


def test_a_chain_stopped_in_a_round_goes_on_there(wash, chat_server, tmp_path):
    chat_server.will(*[stars] * 12)
    stopped = wash("--times", "3", "--max-requests", "6")
    assert stopped.status == 2
    assert "all 6 requests of --max-requests are used: run again to continue" in stopped.err
    assert not (tmp_path / "washed.jsonl").exists()
    assert wash("--times", "3").status == 0
    assert [record["text"] for record in read(tmp_path / "washed.jsonl")] == [
        f"{text}***" if text else "" for text in TEXTS
    ]
    assert len(chat_server.texts) == 12


def test_no_round_starts_from_texts_that_are_missing(wash, chat_server, tmp_path):
    chat_server.will(send(400), *[stars] * 30)
    result = wash("--times", "2")
    assert (result.status, (tmp_path / "washed.jsonl").exists()) == (2, False)
    assert "1 of 5 texts are missing: run again to ask for them" in result.err
    assert wash("--times", "2").status == 0
    assert len(read(tmp_path / "washed.jsonl")) == 5


def test_a_chain_has_one_round_at_least(wash, chat_server):
    assert (wash("--times", "0").status, chat_server.texts) == (2, [])


def test_an_answer_is_waited_for_as_long_as_told(wash, monkeypatch):
    waited = []

    def paraphrase(self, texts, concurrency):
        waited.append(self.timeout)
        return enumerate(texts)

    monkeypatch.setattr(Endpoint, "paraphrase", paraphrase)
    assert wash("--timeout", "900").status == 0
    assert waited == [900.0]


def test_words_become_synonyms_of_the_wordnet_named(run, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"text": "Big cars start, a car starts."}) + "\n")
    folder = write_wordnet(tmp_path / "wn")
    result = run("attack", "synonyms", source, "-o", output, "--wordnet", folder, "--ratio", "1")
    assert result.status == 0, result.err
    [record] = read(output)
    assert record["attack"] == {"name": "synonyms", "ratio": 1.0, "seed": 0}
    assert record["text"] in {f"Large cars {verb}, a auto starts." for verb in SYNONYMS["start"]}
    missing = run("attack", "synonyms", source, "-o", tmp_path / "x", "--wordnet", tmp_path / "no")
    assert (missing.status, (tmp_path / "x").exists()) == (2, False)
    assert "cannot read" in missing.err
