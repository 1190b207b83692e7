"""The mark in transformers' and diffusers' own DiffusionGemma, with a small random model."""

import gc
import json

import numpy as np
import pytest
import torch
from tiny_gemma import tiny_gemma
from toys import PROMPT

from dllmark.errors import DllmarkError, InputError, KeyFileError, MismatchError
from dllmark.relation.greenlist import HashedGreenList

transformers = pytest.importorskip("transformers", "5.22", reason="transformers 5.22, Python 3.11")
from dllmark.integrations.diffusion_gemma import (  # noqa: E402
    DllmarkCanvasProcessor,
    watermarked_pipeline,
)

NO_WORDS = [0, 1, 2, 35, 36]  # a trained model would not write them either
SETTINGS = {"max_new_tokens": 96, "max_denoising_steps": 12}


@pytest.fixture(scope="module")
def model():
    return tiny_gemma(37)


@pytest.fixture
def options(small_key, small_tokenizer):
    return {"key": small_key, "delta": 4.0, "tokenizer": small_tokenizer}


@pytest.fixture
def marking(options):
    made = DllmarkCanvasProcessor(**options)
    yield made
    made.idle = False


def written(model, *marks, prompt=PROMPT, seed=0, **settings):
    """What `generate` writes, its prompt included."""
    torch.manual_seed(seed)
    suppress = transformers.SuppressTokensLogitsProcessor(NO_WORDS)
    processors = transformers.LogitsProcessorList([suppress, *marks])
    return model.generate(prompt, logits_processor=processors, **{**SETTINGS, **settings})


def test_the_text_is_marked_with_the_processor_and_only_with_it(model, marking, p_value):
    marked, plain = written(model, marking), written(model)
    assert p_value(marked.sequences[0], 5) < 1e-6
    assert p_value(plain.sequences[0], 5) > 1e-3
    marking.check()


def test_no_strength_changes_nothing(model, options):
    none = DllmarkCanvasProcessor(**{**options, "delta": 0.0})
    assert torch.equal(written(model, none).sequences, written(model).sequences)
    scores = torch.randn(2, 32, 37)
    assert torch.equal(none(PROMPT.expand(2, -1), scores), scores)
    assert none.biased > 64


def test_adaptive_stopping_still_stops(marking):
    model = tiny_gemma(37, canvas=8)
    for marks in ([], [marking]):
        output = written(model, *marks, max_new_tokens=16, max_denoising_steps=48)
        steps = round(16 / output.tokens_per_forward.item())
        assert steps < 2 * 48
    assert marking.biased == 8 * steps


def test_each_text_of_a_batch_is_marked(model, marking, p_value):
    prompts = torch.tensor([[0, 0, 17, 4, 30], [6, 8, 20, 21, 3]])
    mask = (prompts != 0).long()
    output = written(model, marking, prompt=prompts, attention_mask=mask)
    for text in output.sequences:
        assert p_value(text, 5) < 1e-6


def expected_term(logits, green, side):
    """What the likeliest 8 tokens at a neighbouring place add for each token, by their weight."""
    probabilities = logits.double().softmax(-1)
    best = probabilities.sort(descending=True).indices[:8].tolist()
    term = np.zeros(len(logits))
    for here in range(3, 35):
        for neighbour in best:
            if 3 <= neighbour < 35:
                pair = (neighbour, here) if side < 0 else (here, neighbour)
                is_green = green.pairs(*(np.array([token]) for token in pair))[0]
                term[here] += float(probabilities[neighbour]) * bool(is_green)
    return term


def test_even_places_see_the_models_logits_and_odd_ones_the_biased(marking, small_key):
    """Against a slow and obvious loop; the token before the canvas is certain."""
    green = HashedGreenList(small_key, 37)
    scores = 3 * torch.randn(1, 5, 37)
    biased = marking(PROMPT, scores)
    seen = torch.cat([torch.full((1, 37), -torch.inf), scores[0]])
    seen[0, PROMPT[0, -1]] = 0.0
    words = list(range(3, 35))
    for places in ((1, 3, 5), (2, 4)):
        added = {}
        for place in places:
            term = expected_term(seen[place - 1], green, -1)
            if place < 5:
                term += expected_term(seen[place + 1], green, +1)
            added[place] = marking.watermark.delta * torch.from_numpy(term)
        for place, bias in added.items():
            got = (biased[0, place - 1] - scores[0, place - 1]).double()
            assert torch.allclose(got[words], bias[words], atol=1e-4)
            seen[place] = biased[0, place - 1]


def test_a_request_leaves_a_line_in_the_audit_file(model, options, tmp_path):
    audit = tmp_path / "marks.jsonl"
    with DllmarkCanvasProcessor(**options, audit=audit) as mark:
        written(model, mark, max_new_tokens=64, max_denoising_steps=2)
    [line] = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    assert (line["tokens"], line["biased"], line["delta"]) == (64, 128, 4.0)


def test_without_a_token_before_it_the_canvas_is_marked_as_well(marking):
    scores = torch.randn(1, 8, 37)
    assert not torch.equal(marking(torch.zeros(1, 0, dtype=torch.int64), scores), scores)
    assert marking.biased == 8


def test_a_conversation_that_goes_on_from_a_cache_is_marked(model, options, p_value):
    first = written(model, DllmarkCanvasProcessor(**options), max_new_tokens=32)
    more = torch.tensor([[7, 8, 9]])
    uncached = torch.cat([first.sequences[:, -32:], more], 1)
    second = written(
        model, DllmarkCanvasProcessor(**options), prompt=uncached,
        past_key_values=first.past_key_values,
    )  # fmt: skip
    assert p_value(second.sequences[0], 35) < 1e-6


@pytest.mark.parametrize(
    ("ids", "scores"), [((1, 5), (1, 37)), ((1, 5), (2, 8, 37)), ((5,), (1, 8, 37))]
)
def test_scores_of_another_kind_of_model_are_refused(marking, ids, scores):
    with pytest.raises(DllmarkError, match="DiffusionGemma"):
        marking(torch.zeros(ids, dtype=torch.int64), torch.zeros(scores))


def test_a_processor_that_was_never_called_is_noticed(model, marking, options):
    with pytest.raises(DllmarkError, match="never called"), marking:
        written(model, max_new_tokens=2, max_denoising_steps=1)
    with pytest.warns(RuntimeWarning, match="never called"):
        DllmarkCanvasProcessor(**options)
        gc.collect()


def test_a_list_of_processors_is_for_one_call(model, marking):
    """What the page warns of: transformers adds to the list, and takes no plain one."""
    once = {"max_new_tokens": 2, "max_denoising_steps": 1}
    processors = transformers.LogitsProcessorList([marking])
    model.generate(PROMPT, logits_processor=processors, **once)
    assert len(processors) == 2
    with pytest.raises(TypeError, match="not callable"):
        model.generate(PROMPT, logits_processor=[marking], **once)


def test_a_mark_that_looks_at_what_is_written_is_refused(options):
    with pytest.raises(InputError, match="on a canvas of noise nothing is"):
        DllmarkCanvasProcessor(**{**options, "strategy": "adaptive-bidirectional"})


def test_a_vocabulary_that_does_not_fit_is_refused(marking):
    with pytest.raises(MismatchError):
        marking(PROMPT, torch.zeros(1, 8, 31))


def test_a_missing_key_file_is_refused(tmp_path):
    with pytest.raises(KeyFileError):
        DllmarkCanvasProcessor(tmp_path / "none.key")


SCHEDULERS = {
    "entropy": ("EntropyBoundScheduler", {"entropy_bound": 0.5}, {}),
    "refinement": ("BlockRefinementScheduler", {"editing_threshold": 0.5}, {"temperature": 0.5}),
    "ddim": ("DiscreteDDIMScheduler", {}, {}),
    "corrector": ("DiscreteDDIMScheduler", {"corrector_steps": 1}, {}),
}


class Processor:
    """Gives the pipeline a prompt of token ids, as Gemma's processor would."""

    eos_token_id = None

    def apply_chat_template(self, messages, **options):
        return {"input_ids": torch.tensor([[int(word) for word in messages[0]["content"].split()]])}


@pytest.fixture(scope="module")
def words_only():
    """A model without ids past the tokenizer's, which no pipeline would suppress."""
    return tiny_gemma(35)


@pytest.fixture
def pipeline(words_only):
    diffusers = pytest.importorskip("diffusers", "0.42", reason="diffusers 0.42, Python 3.11")

    def pipeline(scheduler):
        name, settings, _ = SCHEDULERS[scheduler]
        made = diffusers.DiffusionGemmaPipeline(
            words_only, getattr(diffusers, name)(**settings), Processor()
        )
        made.set_progress_bar_config(disable=True)
        return made

    return pipeline


def piped(pipe, scheduler, length=64):
    """What the pipeline writes after the prompt, with it before."""
    output = pipe(
        prompt=" ".join(map(str, PROMPT[0].tolist())), gen_length=length,
        num_inference_steps=10, output_type="seq",
        generator=torch.Generator().manual_seed(0), **SCHEDULERS[scheduler][2],
    )  # fmt: skip
    return torch.cat([PROMPT[0], output.sequences[0]])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_each_scheduler_of_the_pipeline_writes_marked_text(pipeline, options, p_value, scheduler):
    pipe = pipeline(scheduler)
    plain = piped(pipe, scheduler)
    with watermarked_pipeline(pipe, **options) as mark:
        marked = piped(pipe, scheduler)
    assert p_value(marked, 5) < 1e-5
    assert p_value(plain, 5) > 1e-3
    forwards = 2 * 10  # canvases by steps, those of the corrector among them
    assert 0 < mark.biased <= 32 * forwards
    assert torch.equal(piped(pipe, scheduler), plain), "the hooks are gone"


def test_no_strength_changes_nothing_in_the_pipeline(pipeline, options):
    pipe = pipeline("corrector")
    with watermarked_pipeline(pipe, **{**options, "delta": 0.0}):
        marked = piped(pipe, "corrector", length=32)
    assert torch.equal(marked, piped(pipe, "corrector", length=32))


def test_a_run_of_the_pipeline_leaves_a_line_in_the_audit_file(pipeline, options, tmp_path):
    audit, pipe = tmp_path / "marks.jsonl", pipeline("ddim")
    with watermarked_pipeline(pipe, **options, audit=audit) as mark:
        piped(pipe, "ddim")
        biased = mark.biased
    [line] = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    assert (line["tokens"], line["biased"]) == (64, biased)


def test_a_pipeline_that_is_never_run_is_an_error(pipeline, options):
    with (
        pytest.raises(DllmarkError, match="nothing is marked"),
        watermarked_pipeline(pipeline("ddim"), **options),
    ):
        pass


def test_a_pipeline_of_another_model_is_refused(options):
    with (
        pytest.raises(DllmarkError, match="DiffusionGemmaPipeline"),
        watermarked_pipeline(object(), **options),
    ):
        pass


def test_a_model_that_runs_without_its_encoder_is_refused(pipeline, options, words_only):
    """The token before the canvas would not be known, or be that of another text."""
    from transformers import DynamicCache

    cache = DynamicCache(config=words_only.config.get_text_config(decoder=True))
    words_only.model.encoder(input_ids=PROMPT, past_key_values=cache)
    with (
        pytest.raises(DllmarkError, match="without its encoder"),
        watermarked_pipeline(pipeline("ddim"), **options) as mark,
    ):
        mark.idle = False
        canvas = torch.zeros(1, 32, dtype=torch.int64)
        words_only(decoder_input_ids=canvas, past_key_values=cache)
