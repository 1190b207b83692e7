"""Texts are written once and kept; an interrupted run goes on as if it had not been."""

import json

import pytest
import torch
from tiny import tiny_model

from dllmark.errors import InputError
from dllmark.experiments.lab import Lab, sampler_of
from dllmark.experiments.settings import Dataset, Protocol, Setting, read_c4, read_eli5
from dllmark.models.families import DREAM
from dllmark.sampling import Dream, Llada

PROTOCOL = Protocol(samples=6, tokens=16, scored=10, block=8, most_repeats=1.0)
MARKED = Setting("predictive-bidirectional", temperature=1.0)
DATASET = Dataset("C4", [f"w{number}" for number in range(6)], ["w1"] * 6, False)


@pytest.fixture(scope="module")
def model(small_tokenizer):
    torch.set_num_threads(1)
    return tiny_model(small_tokenizer)


def lab_in(folder, model, **options):
    return Lab(model, [DATASET], folder, PROTOCOL, batch_size=4, **options)


def text_file(folder):
    return folder / "texts" / "C4" / f"{MARKED.slug}.jsonl"


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 5])
def test_an_interrupted_run_loses_and_repeats_nothing(model, tmp_path, kept):
    lab_in(tmp_path, model).texts(DATASET, MARKED)
    whole = text_file(tmp_path).read_bytes()
    lines = whole.splitlines(keepends=True)
    text_file(tmp_path).write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    assert len(lab_in(tmp_path, model).texts(DATASET, MARKED)) == 6
    assert text_file(tmp_path).read_bytes() == whole


def test_a_finished_run_writes_nothing_again(model, tmp_path):
    first = lab_in(tmp_path, model).texts(DATASET, MARKED)
    never = lambda *_: pytest.fail("written again") if _[2] else iter(())  # noqa: E731
    assert lab_in(tmp_path, model, write=never).texts(DATASET, MARKED) == first


def test_progress_is_told_after_each_batch(model, tmp_path):
    told = []
    lab = lab_in(tmp_path, model, on_batch=lambda *told_: told.append(told_[1:]))
    lab.texts(DATASET, MARKED)
    assert told == [(4, 6), (6, 6)]


def test_texts_of_other_prompts_are_refused(model, tmp_path):
    lab_in(tmp_path, model).texts(DATASET, MARKED)
    other = Dataset("C4", ["w9"] * 6, ["w1"] * 6, False)
    with pytest.raises(InputError, match="another prompt or key: give another output folder"):
        lab_in(tmp_path, model).texts(other, MARKED)


def test_the_key_of_a_folder_stays_and_is_private(model, tmp_path):
    lab = lab_in(tmp_path, model)
    assert lab.key(0.5).id == lab_in(tmp_path, model).key(0.5).id != lab.key(0.25).id
    assert (tmp_path / "keys" / "gamma-0.5.key").stat().st_mode & 0o077 == 0
    lab.texts(DATASET, MARKED)
    secret = lab.key(0.5).secret.reveal().hex()
    assert secret not in text_file(tmp_path).read_text()


def test_short_and_looping_texts_are_left_out(model, tmp_path):
    lab = lab_in(tmp_path, model)
    lab._texts["C4", Setting(None)] = [
        {"ids": [5] * 10}, {"ids": list(range(9))}, *({"ids": list(range(10))} for _ in range(4))
    ]  # fmt: skip
    lab._texts["C4", Setting("kgw")] = [{"ids": list(range(10))}] * 5 + [{"ids": [1]}]
    lab.protocol = Protocol(samples=6, tokens=16, scored=10, most_repeats=0.5)
    assert lab.kept(DATASET, Setting("kgw")) == [2, 3, 4]
    lab.protocol = Protocol(samples=6, tokens=16, scored=12)
    with pytest.raises(InputError, match="of 6 C4 texts 0 have 12 tokens"):
        lab.kept(DATASET, Setting("kgw"))


def test_each_model_has_the_papers_sampler(model):
    protocol = Protocol()
    assert sampler_of(model, protocol, Setting("kgw")) == Llada(256, 32, 0.0)
    assert sampler_of(model, protocol, Setting("kgw", per_step=4)) == Llada(64, 32, 0.0)
    dream = type(model)(**{**vars(model), "family": DREAM})
    assert sampler_of(dream, protocol, Setting("kgw")) == Dream(256, "entropy", 0.0)


def test_c4_prompts_are_thirty_tokens(tokenizer, tmp_path):
    text = " ".join(f"word{number}" for number in range(100))
    (tmp_path / "c4.jsonl").write_text(json.dumps({"text": text}) + "\n")
    found = read_c4(tmp_path / "c4.jsonl", tokenizer, 1)
    ids = tokenizer.encode(text)
    assert found.prompts == [tokenizer.decode(ids[:30])]
    assert found.prompts[0] + found.truths[0] == text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"question": "a", "answer": "b"}', "has 1 rows and 2 samples are asked for"),
        ('{"question": "a", "answer": "b"}\n{', "eli5.jsonl:2 is not JSON"),
        ('{"question": "a", "answer": "b"}\n{"question": " "}', '2 has no "question"'),
        ('{"question": "a", "answer": "b"}\n[1]', '2 has no "question"'),
        (b"\xff\n\xff", "cannot read"),
    ],
)
def test_bad_prompts_are_named(tmp_path, content, reason):
    path = tmp_path / "eli5.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=reason):
        read_eli5(path, 2)


@pytest.mark.parametrize("numbers", [{"samples": 0}, {"scored": 1}, {"scored": 300}])
def test_a_protocol_that_cannot_be_is_refused(numbers):
    with pytest.raises(InputError):
        Protocol(**numbers)
