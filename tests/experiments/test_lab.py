"""Texts are written once and kept; an interrupted run goes on as if it had not been."""

import json
from dataclasses import replace

import pytest
import torch
from tiny import tiny_model

from dllmark.errors import InputError, ModelError
from dllmark.experiments.batches import Batch, LocalWriter, sampler_of
from dllmark.experiments.lab import CountedPrompts, Lab
from dllmark.experiments.settings import Dataset, Protocol, Setting
from dllmark.models.families import DREAM
from dllmark.sampling.settings import Dream, Llada

PROTOCOL = Protocol(samples=6, tokens=16, scored=10, block=8, most_repeats=1.0)
MARKED = Setting("predictive-bidirectional", temperature=1.0)
DATASET = Dataset("C4", [f"w{number}" for number in range(6)], ["w1"] * 6, False)


@pytest.fixture(scope="module")
def model(small_tokenizer):
    torch.set_num_threads(1)
    return tiny_model(small_tokenizer)


def lab_in(folder, loaded, dataset=DATASET, **options):
    given = {
        "model": loaded.name,
        "protocol": PROTOCOL,
        "writer": LocalWriter(lambda: loaded),
    } | options
    return Lab(
        tokenizer=loaded.tokenizer, datasets=[dataset], folder=folder, batch_size=4, **given
    )  # fmt: skip


class Nobody:
    """Fails if anything is to be written."""

    hardware = dtype = "nothing"

    def write(self, batches):
        pytest.fail("something was to be written")


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
    again = lab_in(tmp_path, model, writer=Nobody(), judge="loaded only to judge")
    assert [text["text"] for text in again.texts(DATASET, MARKED)] == [t["text"] for t in first]
    assert [text["ids"].tolist() for text in first] == [
        json.loads(line)["ids"] for line in text_file(tmp_path).read_text().splitlines()
    ]


def test_loading_the_model_is_not_part_of_the_writing(model):
    loaded = []
    writer = LocalWriter(lambda: loaded.append(model) or model)
    assert list(writer.write([])) == loaded == []
    batch = Batch(MARKED.unmarked, PROTOCOL, False, None, 0, ("w1",))
    texts = writer.write([batch])
    assert loaded == [model]
    assert len(next(texts)) == 1


def test_progress_is_told_after_each_batch(model, tmp_path):
    told = []
    lab = lab_in(tmp_path, model, on_batch=lambda *told_: told.append(told_[1:]))
    lab.texts(DATASET, MARKED)
    assert told == [(4, 6), (6, 6)]


def test_all_texts_of_an_experiment_are_asked_for_at_once(model, tmp_path):
    lab = lab_in(tmp_path, model)
    requests = []
    write = lab.writer.write
    lab.writer.write = lambda batches: requests.append(batches) or write(batches)
    lab.complete([MARKED, Setting("kgw", temperature=1.0)])
    [batches] = requests
    places = [(batch.setting.strategy, batch.first) for batch in batches]
    strategies = (None, MARKED.strategy, "kgw")
    assert places == [(strategy, first) for strategy in strategies for first in (0, 4)]
    lab.complete([MARKED])
    assert len(requests) == 1


def test_a_judge_that_cannot_be_loaded_shows_before_the_writing(model, tmp_path):
    lab = lab_in(tmp_path, model, writer=Nobody(), judge=str(tmp_path))
    with pytest.raises(ModelError, match="cannot load the judge"):
        lab.complete([MARKED])


def test_a_folder_notes_by_what_each_text_was_written(model, tmp_path):
    lab = lab_in(tmp_path, model, command="dllmark reproduce")
    lab.complete([MARKED])
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    notes = [json.loads(line) for line in lines]
    assert [(note["setting"], note["texts"]) for note in notes] == [
        (MARKED.unmarked.slug, 6), (MARKED.slug, 6)]  # fmt: skip
    assert all(note["hardware"].startswith("CPU ") for note in notes)
    assert {note["command"] for note in notes} == {"dllmark reproduce"}
    assert lab_in(tmp_path, model, writer=Nobody()).notes([MARKED]) == lab.notes([MARKED])


def test_a_run_that_was_cut_off_is_noted_too(model, tmp_path):
    def stop(name, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab_in(tmp_path, model, on_batch=stop).texts(DATASET, MARKED)
    second = lab_in(tmp_path, model)
    second.texts(DATASET, MARKED)
    assert [note.texts for note in second.notes([MARKED])] == [4, 2]


@pytest.mark.parametrize(
    "other",
    [{"tokens": 24}, {"suppress_end": True}, {"block": 16}, {"cache": "block"},
     {"no_repeat_ngram": 4}],
)  # fmt: skip
def test_texts_that_were_written_otherwise_are_refused(model, tmp_path, other):
    lab_in(tmp_path, model).texts(DATASET, MARKED)
    said = "written by tiny in 16 tokens: give another .* --tokens 16 --block 8 --cache none"
    with pytest.raises(InputError, match=said):
        lab_in(tmp_path, model, protocol=replace(PROTOCOL, **other)).texts(DATASET, MARKED)


def test_texts_of_another_model_are_read_but_not_added_to(model, tmp_path):
    lab_in(tmp_path, model).texts(DATASET, MARKED)
    elsewhere = lab_in(tmp_path, model, model="where/it/lies/here")
    assert len(elsewhere.texts(DATASET, MARKED)) == 6  # reading them is no mixture
    more = Dataset("C4", [*DATASET.prompts, "w7"], ["w1"] * 7, False)
    with pytest.raises(InputError, match="or --model tiny --tokens 16"):
        lab_in(tmp_path, model, more, model="other").texts(more, MARKED)


def test_a_file_that_was_begun_in_other_numbers_is_not_gone_on_with(model, tmp_path):
    lab_in(tmp_path, model).texts(DATASET, MARKED)
    half = tiny_model(model.tokenizer)
    half.transformer.to(torch.bfloat16)
    assert len(lab_in(tmp_path, half).texts(DATASET, MARKED)) == 6  # there is nothing to add
    more = Dataset("C4", [*DATASET.prompts, "w7"], ["w1"] * 7, False)
    with pytest.raises(InputError, match="begun in float32, and this is bfloat16: go on with --d"):
        lab_in(tmp_path, half, more).texts(more, MARKED)
    assert len(text_file(tmp_path).read_text().splitlines()) == 6


def test_each_order_and_key_has_texts_of_its_own(model, tmp_path):
    lab = lab_in(tmp_path, model)
    settings = [MARKED, replace(MARKED, key=1), replace(MARKED, order="random")]
    texts = [lab.texts(DATASET, setting) for setting in settings]
    assert len({setting.slug for setting in settings}) == 3
    assert len({text[0]["watermark"]["key_id"] for text in texts}) == 2
    assert len({text[0]["text"] for text in texts}) == 3
    assert replace(MARKED, order="random", key=1).unmarked == Setting(
        None, temperature=1.0, order="random", key=1
    )
    assert replace(MARKED, temperature=0.0, key=1).unmarked.key == 0  # nothing is drawn


def test_a_setting_chooses_the_order_and_else_the_model_does(model):
    def sampler(order, family=model.family):
        chosen = replace(MARKED, order=order, per_step=2)
        return sampler_of(family, PROTOCOL, chosen)

    assert sampler("random") == Llada(8, 8, 1.0, order="random")
    assert sampler("entropy") == Dream(8, "entropy", 1.0)
    assert sampler("", DREAM) == Dream(8, "entropy", 1.0)
    assert sampler("left_to_right", DREAM) == Llada(8, 8, 1.0, order="left_to_right")


def test_texts_that_are_written_again_are_measured_again(model, tmp_path, monkeypatch):
    def measure(judge, pairs):
        return [float(sum(text.encode())) for _, text in pairs]

    monkeypatch.setattr("dllmark.experiments.lab.perplexities", measure)
    monkeypatch.setattr("dllmark.experiments.lab.load_judge", lambda name: name)
    first = lab_in(tmp_path, model, judge=r"C:\models/judge")
    first.perplexity(DATASET, MARKED, [0, 1])
    assert (tmp_path / "perplexity" / "C----models--judge" / "C4").is_dir()
    text_file(tmp_path).unlink()
    other = tiny_model(model.tokenizer, seed=1)
    again = lab_in(tmp_path, other, judge=r"C:\models/judge")
    expected = measure(None, [("", text["text"]) for text in again.texts(DATASET, MARKED)[:2]])
    assert again.perplexity(DATASET, MARKED, [0, 1]).tolist() == expected


@pytest.mark.parametrize("name", ["texts", "runs"])
def test_a_damaged_file_is_named(model, tmp_path, name):
    lab_in(tmp_path, model).texts(DATASET, MARKED)
    path = text_file(tmp_path) if name == "texts" else tmp_path / "runs.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(InputError, match="is damaged: remove it"):
        lab_in(tmp_path, model).texts(DATASET, MARKED)


def test_a_folder_that_cannot_be_made_is_named(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"):
        lab_in(tmp_path / "file" / "below", model)


def test_texts_of_other_prompts_are_refused(model, tmp_path):
    lab_in(tmp_path, model).texts(DATASET, MARKED)
    other = Dataset("C4", ["w9"] * 6, ["w1"] * 6, False)
    with pytest.raises(InputError, match="another prompt or key: give another output folder"):
        lab_in(tmp_path, model, other).texts(other, MARKED)


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
    lab._texts["C4", Setting("kgw")] = [{"ids": list(range(10))}] * 5 + [{"ids": [5]}]
    lab.protocol = Protocol(samples=6, tokens=16, scored=10, most_repeats=0.5)
    assert lab.kept(DATASET, Setting("kgw")) == CountedPrompts([2, 3, 4], short=2, looping=1)
    lab.protocol = Protocol(samples=6, tokens=16, scored=12)
    with pytest.raises(InputError, match="of 6 C4 texts 0 have 12 tokens"):
        lab.kept(DATASET, Setting("kgw"))


def test_each_model_has_the_papers_sampler(model):
    protocol = Protocol()
    assert sampler_of(model.family, protocol, Setting("kgw")) == Llada(256, 32, 0.0)
    assert sampler_of(model.family, protocol, Setting("kgw", per_step=4)) == Llada(64, 32, 0.0)
    assert sampler_of(DREAM, protocol, Setting("kgw")) == Dream(256, "entropy", 0.0)
    endless = Protocol(suppress_end=True, no_repeat_ngram=4)
    for family in (model.family, DREAM):
        made = sampler_of(family, endless, Setting("kgw"))
        assert made.suppress_end and made.no_repeat_ngram == 4


@pytest.mark.parametrize(
    "numbers",
    [{"samples": 0}, {"scored": 1}, {"scored": 300}, {"block": 0}, {"delta": -0.1},
     {"delta": float("nan")}],
)  # fmt: skip
def test_a_protocol_that_cannot_be_is_refused(numbers):
    with pytest.raises(InputError):
        Protocol(**numbers)
