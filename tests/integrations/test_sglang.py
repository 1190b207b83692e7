"""The plugin in SGLang's own plugin loader, configuration and algorithms: see sglang_release."""

import gc
import json
import logging
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import yaml
from sglang_release import Server, config, install, load_plugin, load_plugins
from toys import MASK, narrow, small_toy

from dllmark.errors import DllmarkError, KeyFileError, MismatchError
from dllmark.marking.strategies import ENGINE_DEFAULT
from dllmark.marking.watermark import Watermark
from dllmark.relation.key import WatermarkKey
from dllmark.relation.tokenizer import load_tokenizer

PROMPTS = [torch.tensor([5, 9, 17, 4, 30]), torch.tensor([6, 8, 20, 21, 3])]
NAMES = ["DLLMarkLowConfidence", "DLLMarkJointThreshold"]


@pytest.fixture
def algorithms(monkeypatch):
    """SGLang's table of algorithms after the plugin was loaded."""
    table = install(monkeypatch)
    load_plugins()
    return table


@pytest.fixture(scope="module")
def settings(small_key, small_tokenizer, tmp_path_factory):
    """The setting `dllmark` of the YAML, with a key file and a tokenizer file."""
    folder = tmp_path_factory.mktemp("server")
    path = folder / "tokenizer.json"
    small_tokenizer._backend.save(str(path))
    tokenizer = load_tokenizer(str(path))
    WatermarkKey(small_key.secret, 0.5, tokenizer.id).save(folder / "my.key")
    return {"key": str(folder / "my.key"), "delta": 4.0}


@pytest.fixture
def model(small_tokenizer):
    return small_toy(small_tokenizer)


def test_the_plugin_adds_two_algorithms_and_leaves_the_others(algorithms):
    from sglang.srt.dllm.algorithm.joint_threshold import JointThreshold
    from sglang.srt.dllm.algorithm.low_confidence import LowConfidence

    assert {"LowConfidence", "JointThreshold", *NAMES} <= set(algorithms)
    assert algorithms["LowConfidence"] is LowConfidence
    assert issubclass(algorithms["DLLMarkLowConfidence"], LowConfidence)
    assert issubclass(algorithms["DLLMarkJointThreshold"], JointThreshold)


@pytest.mark.parametrize("fdfo", [False, True])
@pytest.mark.parametrize("more", [{}, {"vectorized_decoding": True}])
@pytest.mark.parametrize("name", NAMES)
def test_each_text_is_marked_by_the_algorithm_and_only_by_it(
    algorithms, settings, model, p_value, name, more, fdfo
):
    marking = algorithms[name](config({"dllmark": settings, **more}, fdfo=fdfo))
    plain = algorithms[name.removeprefix("DLLMark")](config(more, fdfo=fdfo))
    for text in Server(marking, model).serve(PROMPTS, blocks=8):
        assert (text != MASK).all()
        assert p_value(text, 5) < 1e-6
    for text in Server(plain, model).serve(PROMPTS, blocks=8):
        assert p_value(text, 5) > 1e-3


@pytest.mark.parametrize("strategy", [ENGINE_DEFAULT.name, "adaptive-bidirectional"])
@pytest.mark.parametrize("fdfo", [False, True])
@pytest.mark.parametrize("length", [5, 8, 16])
@pytest.mark.parametrize("name", NAMES)
def test_a_block_is_biased_as_the_end_of_its_text(
    algorithms,
    settings,
    model,
    monkeypatch,
    small_key,
    small_tokenizer,
    name,
    length,
    fdfo,
    strategy,
):
    """The text of the blocks before included, the prompt not; edits are biased as well."""
    base = algorithms[name].__mro__[2]
    given_settings = {"dllmark": {**settings, "strategy": strategy}}
    marking = algorithms[name](config(given_settings, fdfo=fdfo))
    watermark = Watermark(small_key, strategy, 4.0, tokenizer=small_tokenizer)
    server, given, compared = Server(marking, model), [], 0
    forward, step = server.forward, base.step

    def remember(batch, **options):
        out = forward(batch)
        given.append(out.logits_output.full_logits.clone())
        return out

    def compare(self, batch, full_logits, states):
        nonlocal compared
        for row, before in enumerate(batch.before):
            x = torch.cat([before, batch.input_ids[row * 8 : row * 8 + 8]])[None]
            start = x.shape[1] - 8
            covered = torch.arange(start, start + 8)[None]
            block = given[-1][row * 8 : row * 8 + 8][None]
            prompt = torch.arange(x.shape[1])[None] < length
            expected = watermark.bias(x, x != MASK, block, covered, covered, prompt_mask=prompt)
            own = x[0, start:] == MASK
            if "Low" not in name:
                own = len(before) + torch.arange(8) >= length
            expected = torch.where(own[:, None], expected, block)
            assert torch.equal(full_logits[row * 8 : row * 8 + 8], expected[0])
            compared += int(own.sum())
        return step(self, batch, full_logits, states)

    monkeypatch.setattr(server, "forward", remember)
    monkeypatch.setattr(base, "step", compare)
    server.serve([torch.arange(3, 3 + length), torch.arange(9, 9 + length)], blocks=2)
    assert marking.marker.biased == compared > 0


def test_after_a_prefix_that_was_cached_only_the_first_pair_is_unmarked(
    algorithms, settings, model, p_value
):
    prompts = [torch.arange(3, 19)]
    whole = algorithms["DLLMarkLowConfidence"](config({"dllmark": settings}))
    [text] = Server(whole, model).serve(prompts, blocks=12, skip=2)
    assert p_value(text, 16) < 1e-6
    assert whole._blocks[1].start + 8 == len(text)
    assert not whole._blocks[1].prompt_mask.any()


def test_a_slot_that_another_request_had_before_is_not_mistaken_for_its_past(algorithms, settings):
    marking = algorithms["DLLMarkLowConfidence"](config({"dllmark": settings}))
    from dllmark.integrations.sglang import _Block

    prompt_mask, given = torch.arange(16) < 3, torch.zeros(8, dtype=torch.bool)
    marking._blocks[1] = _Block("one", 8, torch.arange(16), prompt_mask)

    def begun(slot, request, start):
        block = marking._begun(slot, request, start, given)
        return block.text.tolist(), block.prompt_mask.sum().item(), len(block.prompt_mask)

    assert begun(1, "one", 16) == ([*range(16)], 3, 24)
    assert begun(1, "one", 8) == ([*range(8)], 3, 16)
    for other in [(1, "one", 24), (1, "two", 16), (2, "one", 16), (1, "", 16)]:
        assert begun(*other) == ([], 0, 8)


def test_a_mask_that_the_user_wrote_is_prompt(algorithms, settings):
    marking = algorithms["DLLMarkLowConfidence"](config({"dllmark": settings}))

    class Batch:
        input_ids = torch.tensor([5, MASK, MASK, MASK, MASK, MASK, MASK, MASK])
        dllm_prompt_mask = torch.tensor([[True] * 3 + [False] * 5])

    assert marking._masked(Batch).tolist() == [[False] * 3 + [True] * 5]


@pytest.mark.parametrize(("given", "message"), [
    ({}, "has no key"),
    ({"dllmark": None}, "has no key"),
    ({"dllmark": {"delta": 2.0}}, "has no key"),
    ({"dllmark": {"key": 7}}, "has no key"),
    ({"dllmark": {"key": "none.key", "detla": 2.0}}, "no setting detla"),
    ({"dllmark": {"key": "none.key", "delta": "2"}}, "delta of dllmark is a number"),
])  # fmt: skip
def test_without_a_key_or_with_a_slip_in_its_settings_a_server_does_not_start(
    algorithms, given, message
):
    for name in NAMES:
        with pytest.raises(DllmarkError, match=message):
            algorithms[name](config(given))


def test_a_key_file_that_is_not_there_stops_the_server(algorithms, tmp_path):
    with pytest.raises(KeyFileError, match="there is no key file"):
        algorithms[NAMES[0]](config({"dllmark": {"key": str(tmp_path / "none.key")}}))


def test_a_key_of_another_tokenizer_stops_the_server(algorithms, settings):
    with pytest.raises(MismatchError):
        algorithms[NAMES[0]](config({"dllmark": {**settings, "tokenizer": "embedded"}}))


def test_a_key_for_another_model_stops_the_server(algorithms, settings):
    with pytest.raises(DllmarkError, match="no mask"):
        algorithms[NAMES[0]](config({"dllmark": settings}, mask_id=9))


def test_a_vocabulary_that_does_not_fit_is_refused(algorithms, settings, model):
    narrow(model, 31)
    marking = algorithms[NAMES[0]](config({"dllmark": settings}))
    with pytest.raises(MismatchError):
        Server(marking, model).serve(PROMPTS, blocks=1)


def test_an_sglang_that_fills_masks_without_a_step_is_refused(monkeypatch, settings, model):
    def run(self, model_runner, forward_batch, algo_states=None):
        forward_batch.input_ids.fill_(5)
        return None, [], None, None, False

    table = install(monkeypatch)
    monkeypatch.setattr(table["LowConfidence"], "run", run)
    load_plugins()
    marking = table["DLLMarkLowConfidence"](config({"dllmark": settings}))
    with pytest.raises(DllmarkError, match="without calling step"):
        Server(marking, model).serve(PROMPTS, blocks=1)


def no_step(table):
    table["LowConfidence"] = object


def no_algorithm(table):
    del table["JointThreshold"]


def another_step(table):
    table["LowConfidence"].step = lambda self, batch, hidden_states, states: []


def a_step_past_the_step(table):
    table["JointThreshold"].batched_step = lambda self, batch, full_logits, context: None


@pytest.mark.parametrize(("change", "message"), [
    (no_step, r"sglang>=0\.5\.18"), (no_algorithm, r"sglang>=0\.5\.18"),
    (another_step, "hidden_states"), (a_step_past_the_step, "batched_step"),
])  # fmt: skip
def test_with_an_interface_that_is_not_known_a_server_does_not_start(
    monkeypatch, caplog, change, message
):
    """SGLang's loader logs what a plugin raises and goes on without it."""
    table = install(monkeypatch)
    change(table)
    with pytest.raises(DllmarkError, match=message):
        load_plugin()
    load_plugins()
    assert not any(name.startswith("DLLMark") for name in table)
    assert "Failed to load plugin dllmark" in caplog.text


class OutputServer(Server):
    """Hands the algorithm an output as SGLang's main branch does, with a summary of the logits.

    That branch is not released: this is its interface as it was read.
    """

    dense = True

    def forward(self, batch, pp_proxy_tensors=None):
        out = super().forward(batch)
        logits = out.logits_output.full_logits if self.dense else None
        out.logits_output.full_logits = SimpleNamespace(
            full_logits=logits, dllm_vocab_state="of the logits without bias"
        )
        return out


@pytest.fixture
def of_main(monkeypatch):
    """SGLang's LowConfidence with the step of the main branch, and the plugin."""
    table = install(monkeypatch)
    step = table["LowConfidence"].step

    def with_output(self, forward_batch, logits_output, states):
        assert logits_output.dllm_vocab_state is None, "it would choose from the summary"
        return step(self, forward_batch, logits_output.full_logits, states)

    monkeypatch.setattr(table["LowConfidence"], "step", with_output)
    load_plugins()
    return table["DLLMarkLowConfidence"]


def test_a_step_that_is_given_an_output_in_place_of_logits_is_marked(
    of_main, settings, model, p_value
):
    marking = of_main(config({"dllmark": settings}))
    for text in OutputServer(marking, model).serve(PROMPTS, blocks=8):
        assert p_value(text, 5) < 1e-6


def test_a_summary_in_place_of_the_logits_is_refused(of_main, settings, model, monkeypatch):
    monkeypatch.setattr(OutputServer, "dense", False)
    marking = of_main(config({"dllmark": settings}))
    with pytest.raises(DllmarkError, match="summary"):
        OutputServer(marking, model).serve(PROMPTS, blocks=1)


def test_a_process_that_loads_no_plugins_does_not_start(monkeypatch, settings, tmp_path):
    """As the actors of `--use-ray`, or with SGLANG_PLUGINS set to others."""
    path = tmp_path / "dllmark.yaml"
    path.write_text(yaml.safe_dump({"dllmark": settings}), encoding="utf-8")
    arguments = SimpleNamespace(
        dllm_algorithm="DLLMarkLowConfidence", dllm_algorithm_config=str(path), dllm_fdfo=False,
        model_path="LLaDA2", revision=None, max_running_requests=None,
    )  # fmt: skip
    table = install(monkeypatch)
    start = table["LowConfidence"].from_server_args
    with pytest.raises(RuntimeError, match="Unknown diffusion LLM algorithm: DLLMarkLow"):
        start(arguments)
    monkeypatch.setenv("SGLANG_PLUGINS", "others")
    load_plugins()
    with pytest.raises(RuntimeError, match="Unknown diffusion LLM algorithm: DLLMarkLow"):
        start(arguments)
    load_plugin()
    assert start(arguments).marker.watermark.delta == 4.0


def test_the_log_names_the_key_and_the_count_and_no_secret(
    algorithms, settings, model, small_key, caplog
):
    with caplog.at_level(logging.INFO, logger="dllmark"):
        marking = algorithms[NAMES[0]](config({"dllmark": settings}))
        Server(marking, model).serve(PROMPTS, blocks=12)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == f"dllmark marks with key {small_key.id}"
    counts = [int(line.split()[6]) for line in lines[1:]]
    assert 1 < len(counts) < 12
    assert all(later >= 2 * earlier for earlier, later in pairwise(counts))
    assert small_key.secret.reveal().hex() not in caplog.text


def test_each_request_leaves_a_line_in_the_audit_file(algorithms, settings, model, tmp_path):
    audit = tmp_path / "marks.jsonl"
    given = {"dllmark": {**settings, "audit": str(audit)}}
    algorithm = algorithms["DLLMarkLowConfidence"](config(given))
    server = Server(algorithm, model)
    texts = server.serve(PROMPTS, blocks=3)
    biased = algorithm.marker.biased
    del algorithm, server
    gc.collect()
    lines = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    assert [line["tokens"] for line in lines] == [len(text) - 5 for text in texts]
    assert sum(line["biased"] for line in lines) == biased
    assert {line["delta"] for line in lines} == {4.0}


def test_an_audit_file_that_cannot_be_written_stops_the_server(algorithms, settings, tmp_path):
    for wrong, message in ((str(tmp_path / "none" / "x"), "cannot write"), (3, "path of a file")):
        given = {"dllmark": {**settings, "audit": wrong}}
        with pytest.raises(DllmarkError, match=message):
            algorithms["DLLMarkLowConfidence"](config(given))
