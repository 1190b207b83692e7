"""Prompts in their formats; a file of texts that survives every interruption."""

import io
import json
import sys
from dataclasses import replace
from itertools import combinations

import pytest
from tiny import tiny_model

import dllmark.commands.generate
from dllmark.commands.generate import (
    BATCH,
    MarkSettings,
    TextRun,
    model_source,
)
from dllmark.commands.prompts import gather_prompts, read_prompts
from dllmark.commands.sampler_options import make_sampler
from dllmark.errors import DllmarkError, InputError, ModelError
from dllmark.marking.watermark import Watermark
from dllmark.sampling.settings import Dream, Llada, Parallel, default_no_repeat
from dllmark.sampling.texts import generate

pytestmark = pytest.mark.usefixtures("one_core")

PROMPTS = [f"w{number} w{number + 1}" for number in range(2 * BATCH + 3)]

SAMPLER = Llada(4, 8, 1.0)


@pytest.fixture
def model(small_tokenizer, monkeypatch):
    """The model every run of a test loads, with random weights."""
    loaded = tiny_model(small_tokenizer)
    monkeypatch.setattr("dllmark.models.loading.load_model", lambda source: loaded)
    monkeypatch.setattr("dllmark.relation.tokenizer.load_tokenizer", lambda source: small_tokenizer)
    return loaded


@pytest.fixture
def text_run(small_key, model):
    """Eight tokens for each prompt, marked."""
    mark = MarkSettings.of(small_key, "predictive-bidirectional", 2.0, SAMPLER)
    return TextRun("small", mark, SAMPLER, tokens=8, chat=False)


@pytest.fixture
def whole(text_run, tmp_path):
    """The bytes of a file that was never interrupted."""
    assert text_run.append(PROMPTS, tmp_path / "whole.jsonl") == 0
    return (tmp_path / "whole.jsonl").read_bytes()


FORMATS = {
    "a text": ("p.txt", b"Why is\nthe sky blue?\n", ["Why is\nthe sky blue?"]),
    "strings": ("p.jsonl", b'"a"\n"b"\n', ["a", "b"]),
    "objects": ("p.jsonl", b'{"prompt": "a", "id": 1}\n{"prompt": "b"}', ["a", "b"]),
    "JSONL by another name": ("p.txt", b'{"prompt": "a"}\n', ["a"]),
    "blank lines and a byte order mark": ("p.jsonl", b'\xef\xbb\xbf"a"\r\n \n\n"b"', ["a", "b"]),
    "line separators in a string": (
        "p.jsonl",
        '"a\u2028b"\n"c\x85"'.encode(),
        ["a\u2028b", "c\x85"],
    ),
}


@pytest.mark.parametrize(("name", "content", "prompts"), FORMATS.values(), ids=FORMATS)
def test_prompts_are_a_text_or_lines_of_json(tmp_path, name, content, prompts):
    (tmp_path / name).write_bytes(content)
    assert read_prompts(str(tmp_path / name)) == prompts


BAD = {
    "no JSON": (
        "p.jsonl",
        b'"a"\nWhy?\n',
        ':2: not a line of JSON: write each as {"prompt": "..."}',
    ),
    "a quote and no JSON": ("p.txt", b'"Why?" she asked.\n', ":1: not a line of JSON"),
    "no prompt": ("p.jsonl", b'{"text": "a"}\n', ":1: no string under"),
    "no string": ("p.jsonl", b'{"prompt": ["a"]}\n', ":1: no string under"),
    "a number": ("p.jsonl", b"7\n", ":1: no string under"),
    "nesting": ("p.jsonl", b"[" * 100_000, ":1: not a line of JSON"),
    "nothing": ("p.jsonl", b" \n\n", " is empty: it needs at least one text"),
    "Latin-1": ("p.txt", b"caf\xe9", ": byte 3 is not valid UTF-8"),
    "an empty prompt": ("p.jsonl", b'"a"\n""\n', "prompt 2 is empty: give at least one word"),
    "half a character": ("p.jsonl", b'"\\ud83e"\n', ":1: the prompt holds lone surrogates"),
}


@pytest.mark.parametrize(("name", "content", "reason"), BAD.values(), ids=BAD)
def test_prompts_that_cannot_be_used_are_refused(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        gather_prompts([], str(tmp_path / name))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "file", "prompts"),
    [
        (["a", "b"], False, ["a", "b"]),
        (["a"], True, ["a", "from the file"]),
        ([], True, ["from the file"]),
        ([], False, ["from the input"]),
        (["-"], False, ["from the input"]),
        (["a", "-", "b"], False, ["a", "b", "from the input"]),
        (["-"], True, ["from the file", "from the input"]),
    ],
)
def test_prompts_are_arguments_then_a_file_then_the_input(
    tmp_path, monkeypatch, arguments, file, prompts
):
    (tmp_path / "p").write_text("from the file")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from the input\n")))
    assert gather_prompts(arguments, str(tmp_path / "p") if file else None) == prompts


def test_every_prompt_is_answered_in_order(text_run, whole):
    records = [json.loads(line) for line in whole.splitlines()]
    assert [record["prompt"] for record in records] == PROMPTS
    assert [
        record for record in records if record["watermark"] != text_run.mark.key.identity.to_dict()
    ] == []
    assert [text_run.record(text) for text in text_run.texts(PROMPTS)] == records


@pytest.mark.parametrize(
    ("settings", "sampler"),
    [
        ({}, Llada(4, 8, 1.0, apart=True)),
        ({"no-apart": False}, Llada(4, 8, 1.0)),
        ({"order": "left_to_right"}, Llada(4, 8, 1.0, order="left_to_right")),
        ({"top-p": 0.5, "cache": "prefix"}, Llada(4, 8, 1.0, 0.5, cache="prefix", apart=True)),
        ({"suppress-end": True}, Llada(4, 8, 1.0, suppress_end=True, apart=True)),
        ({"no-repeat-ngram": 4}, Llada(4, 8, 1.0, apart=True, no_repeat_ngram=4)),
        ({"name": "dream"}, Dream(4, "entropy", 1.0)),
        ({"name": "dream", "top-k": 7}, Dream(4, "entropy", 1.0, top_k=7)),
        ({"name": "dream", "top-k": 0}, Dream(4, "entropy", 1.0, top_k=None)),
        ({"cfg-scale": 1.5}, Llada(4, 8, 1.0, cfg_scale=1.5, apart=True)),
        ({"name": "dream", "order": "topk_margin"}, Dream(4, "topk_margin", 1.0)),
        ({"name": "dream", "suppress-end": True}, Dream(4, "entropy", 1.0, suppress_end=True)),
        ({"name": "parallel"}, Parallel(block_length=8, temperature=1.0)),
        (
            {"name": "parallel", "suppress-end": True, "cache": "block"},
            Parallel(block_length=8, temperature=1.0, suppress_end=True, cache="block"),
        ),
    ],
)
def test_a_sampler_has_the_settings_given_and_its_own_defaults(settings, sampler):
    options = {"name": "llada", "temperature": 1.0, "order": None, **settings}
    name = options.pop("name")
    options |= {} if name == "parallel" else {"steps": 4}
    options |= {} if name == "dream" else {"block": 8}
    assert make_sampler(name, 128, options, "owner/name") == sampler


@pytest.mark.parametrize(
    ("name", "options", "cache"),
    [
        ("llada", {"cache": None}, "window"),
        ("parallel", {"cache": None}, "window"),
        ("llada", {"cache": "none"}, "none"),
        ("llada", {"cache": "prefix"}, "prefix"),
        ("llada", {"cache": None, "cfg-scale": 1.5}, "none"),
        ("llada", {"cache": None, "cfg-scale": 0.0}, "window"),
    ],
)
def test_the_embedded_model_has_a_cache_unless_told_otherwise(name, options, cache):
    assert make_sampler(name, 128, options, "embedded").cache == cache
    assert make_sampler("dream", 128, {"cache": None}, "embedded") == Dream(64, no_repeat_ngram=5)


@pytest.mark.parametrize("name", ["llada", "dream", "parallel", "llada2"])
def test_the_embedded_model_repeats_no_five_tokens_unless_told_otherwise(name):
    given = (None, 0, 3)
    sizes = [make_sampler(name, 64, {"no-repeat-ngram": size}, "embedded") for size in given]
    assert [sampler.no_repeat_ngram for sampler in sizes] == [5, 0, 3]
    assert make_sampler(name, 64, {"no-repeat-ngram": None}, "owner/name").no_repeat_ngram == 0


def test_the_embedded_model_writes_one_token_a_step_in_short_blocks_unless_told_otherwise():
    own = make_sampler("llada", 96, {"steps": None, "block": None, "cache": None}, "embedded")
    assert (own.steps, own.block_length, own.cache) == (96, 16, "window")
    given = {"steps": 24, "block": 32, "cache": "none", "no-repeat-ngram": 0}
    assert make_sampler("llada", 96, given, "embedded") == Llada(24, 32, apart=True)


@pytest.mark.parametrize(
    ("options", "cache"),
    [
        (["--model", "embedded"], "window"),
        (["--model", "embedded", "--cache", "none"], "none"),
        (["--model", "another"], "none"),
    ],
)
def test_a_text_says_with_which_cache_it_was_written(
    run, model, small_key, tmp_path, options, cache
):
    small_key.save(tmp_path / "k")
    short = ["--tokens", "8", "--block", "8", "--steps", "4", "--plain", "--json"]
    record = run("generate", "w1", "--key", tmp_path / "k", *short, *options).json
    mark = Watermark(small_key, "cooled-joint", tokenizer=model.tokenizer)
    repeats = default_no_repeat(options[1])
    sampler = Llada(4, 8, cache=cache, apart=True, no_repeat_ngram=repeats)
    [text] = generate(model, ["w1"], mark, sampler, tokens=8, chat=False)
    assert (record["settings"]["cache"], record["ids"]) == (cache, text.ids)


@pytest.mark.parametrize(
    ("options", "strategy", "delta"),
    [
        ([], "cooled-joint", 10.8),
        (["--delta", "3"], "cooled-joint", 3.0),
        (["--temperature", "0"], "cooled-joint", 10.8),
        (["--payload", "7"], "joint", 3.6),
        (["--payload", "7", "--order", "random"], "expected-bidirectional", 2.0),
        (["--sampler", "dream"], "adaptive-bidirectional", 3.0),
        (["--order", "random"], "adaptive-bidirectional", 3.0),
        (["--strategy", "kgw"], "kgw", 2.0),
    ],
)
def test_the_strategy_suits_the_sampler_unless_one_is_named(
    run, model, small_key, tmp_path, options, strategy, delta
):
    small_key.save(tmp_path / "k")
    short = ["--tokens", "8", "--steps", "4", "--plain", "--json"]
    record = run("generate", "w1", "--key", tmp_path / "k", *short, *options).json
    assert (record["settings"]["strategy"], record["settings"]["delta"]) == (strategy, delta)


def test_a_strategy_that_the_sampler_cannot_have_is_a_clear_error(run, small_key, tmp_path):
    small_key.save(tmp_path / "k")
    joint = ["--key", tmp_path / "k", "--strategy", "joint", "--order", "random"]
    result = run("generate", "w1", *joint)
    assert result.status == 2
    assert (
        "joint is for LLaDA's sampler, in its low_confidence or left_to_right order" in result.err
    )


def test_a_first_batch_is_what_the_library_writes(text_run, model):
    mark = Watermark(text_run.mark.key, "predictive-bidirectional", 2.0, tokenizer=model.tokenizer)
    sampler, prompts = Dream(4, "entropy", 1.0), PROMPTS[:BATCH]
    texts = generate(model, prompts, mark, sampler, tokens=8, chat=False, seed=5)
    assert list(replace(text_run, seed=5, sampler=sampler).texts(PROMPTS))[:BATCH] == texts


def test_no_two_batches_share_their_noise_whatever_their_seeds(text_run):
    batches = []
    for seed in (0, BATCH):
        ids = [text.ids for text in replace(text_run, seed=seed).texts(["w1"] * (2 * BATCH))]
        batches += [ids[:BATCH], ids[BATCH:]]
    assert all(one != other for one, other in combinations(batches, 2))


class Stopped(Exception):
    """What ends a run that is interrupted."""


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    text_run, whole, tmp_path, monkeypatch, batches
):
    calls = []

    def stopping(*arguments, **options):
        calls.append(arguments)
        if len(calls) > batches:
            raise Stopped
        return generate(*arguments, **options)

    path = tmp_path / "texts.jsonl"
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("dllmark.sampling.texts.generate", stopping)
        text_run.append(PROMPTS, path)
    left = path.read_bytes() if path.exists() else b""
    assert left.count(b"\n") == batches * BATCH
    assert text_run.append(PROMPTS, path) == batches * BATCH
    assert path.read_bytes() == whole


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.5, 0.77, 0.99])
def test_a_line_that_was_cut_off_is_written_again(text_run, whole, tmp_path, share):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(whole[: int(share * len(whole))])
    assert text_run.append(PROMPTS, path) == path.read_bytes()[: int(share * len(whole))].count(
        b"\n"
    )
    assert path.read_bytes() == whole


def test_a_last_line_without_its_end_is_written_again(text_run, whole, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(whole[:-1])
    assert text_run.append(PROMPTS, path) == len(PROMPTS) - 1
    assert path.read_bytes() == whole


def test_lines_that_are_there_stay_as_they_are(text_run, whole, tmp_path):
    path = tmp_path / "texts.jsonl"
    kept = b"".join(whole.splitlines(keepends=True)[:5]).replace(b'{"prompt"', b'{"n":1, "prompt"')
    path.write_bytes(kept)
    assert text_run.append(PROMPTS, path) == 5
    assert path.read_bytes().startswith(kept)
    assert path.read_bytes()[len(kept) :] == b"".join(whole.splitlines(keepends=True)[5:])


def test_a_finished_file_takes_no_model(text_run, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("dllmark.models.loading.load_model", lambda source: pytest.fail("loaded"))
    assert text_run.append(PROMPTS, tmp_path / "whole.jsonl") == len(PROMPTS)
    assert (tmp_path / "whole.jsonl").read_bytes() == whole


OTHER = {
    "another prompt": (b'{"prompt": "w9 w9", "watermark": null}\n', "does not answer prompt 1"),
    "no record": (b"some text\n", "does not answer prompt 1 of this run: give another output"),
    "binary": (b"\xff\xfe\0\n", "does not answer prompt 1"),
    "no mark": (b'{"prompt": "w0 w1", "watermark": null}\n', "carries another mark than this"),
    "another key": (b'{"prompt": "w0 w1", "watermark": {"key_id": "x"}}\n', "carries another mark"),
}


@pytest.mark.parametrize(("content", "reason"), OTHER.values(), ids=OTHER)
def test_a_file_of_another_run_is_refused_and_kept(text_run, tmp_path, content, reason):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(content + b"cut off")
    with pytest.raises(InputError, match=f"texts.jsonl:1 {reason}"):
        text_run.append(PROMPTS, path)
    assert path.read_bytes() == content + b"cut off"


CHANGED = {
    "strategy": ({"mark": "kgw"}, "strategy 'predictive-bidirectional', and this run has 'kgw'"),
    "delta": ({"mark": 3.0}, "delta 2.0, and this run has 3.0"),
    "temperature": ({"sampler": Llada(4, 8, 0.5)}, "temperature 1.0, and this run has 0.5"),
    "sampler": ({"sampler": Dream(4)}, "sampler 'llada', and this run has 'dream'"),
    "tokens": ({"tokens": 16}, "tokens 8, and this run has 16"),
    "seed": ({"seed": 1}, "seed 0, and this run has 1"),
    "model": ({"model": "owner/other"}, "model 'small', and this run has 'owner/other'"),
    "chat": ({"chat": True}, "chat False, and this run has True"),
}


@pytest.mark.parametrize(("change", "reason"), CHANGED.values(), ids=CHANGED)
def test_a_file_is_not_continued_with_other_settings(text_run, small_key, tmp_path, change, reason):
    path = tmp_path / "texts.jsonl"
    text_run.append(PROMPTS[:1], path)
    before = path.read_bytes()
    if "mark" in change:
        given = change["mark"]
        given = (given, 2.0) if isinstance(given, str) else ("predictive-bidirectional", given)
        change = {"mark": MarkSettings.of(small_key, *given, SAMPLER)}
    with pytest.raises(InputError, match=f"texts.jsonl:1 was written with {reason}: give another"):
        replace(text_run, **change).append(PROMPTS, path)
    assert path.read_bytes() == before


def test_a_text_that_does_not_say_its_settings_is_not_continued(text_run, whole, tmp_path):
    path = tmp_path / "texts.jsonl"
    record = json.loads(whole.splitlines()[0])
    del record["settings"]
    path.write_text(json.dumps(record) + "\n")
    reason = "texts.jsonl:1 does not say with which settings it was written"
    with pytest.raises(InputError, match=reason):
        text_run.append(PROMPTS, path)


def test_the_settings_of_a_folders_model_have_its_name_alone(text_run, tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert replace(text_run, model=str(folder)).settings["model"] == "my-model"


def test_two_runs_do_not_write_to_one_file(text_run, tmp_path, monkeypatch):
    """The second starts while the first writes its second batch."""
    path, calls = tmp_path / "texts.jsonl", []

    def second_run(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            with pytest.raises(InputError, match="another run is writing to"):
                text_run.append(PROMPTS, path)
        return generate(*arguments, **options)

    monkeypatch.setattr("dllmark.sampling.texts.generate", second_run)
    assert text_run.append(PROMPTS, path) == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["prompt"] for record in records] == PROMPTS


def test_a_file_with_more_texts_than_prompts_is_refused(text_run, whole, tmp_path):
    with pytest.raises(InputError, match=r"whole.jsonl:6 does not answer prompt 6"):
        text_run.append(PROMPTS[:5], tmp_path / "whole.jsonl")


def test_an_unmarked_run_continues_an_unmarked_file(text_run, tmp_path):
    unmarked = replace(text_run, mark=None)
    assert unmarked.append(PROMPTS[:1], tmp_path / "texts.jsonl") == 0
    assert unmarked.append(PROMPTS[:2], tmp_path / "texts.jsonl") == 1
    with pytest.raises(InputError, match="carries another mark"):
        text_run.append(PROMPTS[:2], tmp_path / "texts.jsonl")


def test_a_run_that_fails_before_its_first_text_leaves_the_file_as_it_was(
    text_run, whole, tmp_path
):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(whole[:-5])
    with pytest.raises(DllmarkError, match="prompt 20 has 200 tokens"):
        text_run.append([*PROMPTS, "w1 " * 200], path)
    assert path.read_bytes() == whole[:-5]


def test_a_disk_that_is_full_is_a_clear_error(text_run, tmp_path, monkeypatch):
    def full(path, end, line):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dllmark.commands.generate, "append_line", full)
    with pytest.raises(InputError, match=r"cannot write to .*texts.jsonl: No space left on device"):
        text_run.append(PROMPTS, tmp_path / "texts.jsonl")


def test_weights_that_cannot_be_read_are_a_clear_error(text_run, monkeypatch):
    def unreadable(source):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("dllmark.models.loading.load_model", unreadable)
    with pytest.raises(ModelError, match=r"cannot load small: .*Input/output error"):
        list(text_run.texts(PROMPTS))


@pytest.mark.parametrize(
    ("made_for", "given", "loaded"),
    [
        ("embedded", None, "embedded"),
        ("/models/x/tokenizer.json", None, "/models/x"),
        ("/models/x/my-tokenizer.json", None, "/models/x/my-tokenizer.json"),
        ("owner/name", None, "owner/name"),
        ("owner/name", "/models/y", "/models/y"),
        ("embedded", "/models/y/tokenizer.json", "/models/y"),
        (None, None, "embedded"),
    ],
)
def test_the_model_is_the_one_given_or_that_of_the_keys_tokenizer(
    small_key, made_for, given, loaded
):
    tokenizer = replace(small_key.tokenizer, name=made_for)
    key = replace(small_key, tokenizer=tokenizer) if made_for else None
    assert model_source(given, key) == loaded


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (96, 48), (128, 64), (256, 128)])
def test_a_longer_text_gets_more_steps_unless_they_are_named(tokens, steps):
    for name in ("llada", "dream"):
        assert make_sampler(name, tokens, {"steps": None}, "m").steps == steps
        assert make_sampler(name, tokens, {"steps": 7}, "m").steps == 7
