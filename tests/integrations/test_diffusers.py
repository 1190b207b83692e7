"""The scheduler in diffusers' own LLaDA2Pipeline, with a small model."""

import gc
import weakref

import pytest
import torch
from toys import END, MASK, PROMPT, narrow, small_toy

from dllmark.errors import DllmarkError, KeyFileError, MismatchError
from dllmark.marking.strategies import ENGINE_DEFAULT
from dllmark.marking.watermark import Watermark

diffusers = pytest.importorskip("diffusers", "0.42", reason="diffusers 0.42 needs Python 3.11")
from dllmark.integrations.diffusers import DllmarkScheduler  # noqa: E402


@pytest.fixture
def model(small_tokenizer):
    return small_toy(small_tokenizer)


@pytest.fixture
def options(small_key, small_tokenizer):
    return {"key": small_key, "delta": 4.0, "tokenizer": small_tokenizer}


def written(model, scheduler, input_ids=PROMPT, **options):
    """What the pipeline writes after the prompt."""
    pipe = diffusers.LLaDA2Pipeline(model, scheduler)
    pipe.set_progress_bar_config(disable=True)
    settings = {
        "gen_length": 96, "block_length": 8, "num_inference_steps": 8, "threshold": 0.9,
        "editing_threshold": None, "mask_token_id": MASK, "eos_token_id": END, **options,
    }  # fmt: skip
    return pipe(input_ids=input_ids, output_type="seq", **settings).sequences


def with_prompt(text, prompt=PROMPT):
    return torch.cat([prompt[0], text])


@pytest.mark.parametrize("settings", [
    {}, {"editing_threshold": 0.3}, {"temperature": 0.7}, {"block_length": 32},
])  # fmt: skip
def test_the_text_is_marked_with_the_scheduler_and_only_with_it(model, options, p_value, settings):
    marking = DllmarkScheduler(model, **options)
    marked = written(model, marking, **settings)[0]
    plain = written(model, diffusers.BlockRefinementScheduler(), **settings)[0]
    assert p_value(with_prompt(marked), 5) < 1e-6
    assert p_value(with_prompt(plain), 5) > 1e-3
    marking.check()


def test_no_strength_changes_nothing(model, small_key, small_tokenizer):
    none = DllmarkScheduler(model, small_key, delta=0.0, tokenizer=small_tokenizer)
    plain = diffusers.BlockRefinementScheduler()
    settings = {"editing_threshold": 0.3, "threshold": 0.2}
    assert torch.equal(written(model, none, **settings), written(model, plain, **settings))


def recorded(model, options, **settings):
    """Each step's tokens, its block's logits from the model, and those the base class chose from.

    Blocks are of 8 tokens.
    """
    given, used = [], []
    model.register_forward_hook(
        lambda _, args, out: given.append((args[0].clone(), out.logits[:, -8:].clone()))
    )
    marking, base = DllmarkScheduler(model, **options), diffusers.BlockRefinementScheduler
    step = base.step

    def record(self, logits, *arguments, **more):
        used.append(logits)
        return step(self, logits, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "step", record)
        written(model, marking, **settings)
    return zip(given, used, strict=True), marking


@pytest.mark.parametrize("strategy", [ENGINE_DEFAULT.name, "adaptive-bidirectional"])
@pytest.mark.parametrize("length", [1, 5, 8, 12])
def test_a_block_is_biased_as_the_end_of_the_whole_text(model, options, length, strategy):
    """Left neighbours across blocks included, committed tokens too, the prompt not."""
    prompt = torch.arange(3, 3 + length)[None]
    steps, marking = recorded(
        model, {**options, "strategy": strategy}, input_ids=prompt, gen_length=20,
        editing_threshold=0.3,
    )  # fmt: skip
    watermark = Watermark(options["key"], strategy, 4.0, tokenizer=options["tokenizer"])
    positions = 0
    for (x, before), after in steps:
        start = x.shape[1] - 8
        covered = torch.arange(start, x.shape[1])[None]
        given = torch.arange(x.shape[1])[None] < length
        expected = watermark.bias(x, x != MASK, before, covered, covered, prompt_mask=given)
        own = covered[0] >= length
        assert torch.equal(after[:, own], expected[:, own])
        assert torch.equal(after[:, ~own], before[:, ~own])
        positions += int(own.sum())
    assert marking.biased == positions > 0


def test_to_an_adaptive_mark_an_answer_that_is_to_go_on_is_prompt(model, options):
    settings = {**options, "strategy": "adaptive-bidirectional"}
    first, second = DllmarkScheduler(model, **settings), DllmarkScheduler(model, **settings)
    prompt = torch.arange(3, 11)[None]
    answer = written(model, first, input_ids=prompt, gen_length=24)
    more = {"input_ids": torch.cat([prompt, answer], 1), "gen_length": 24}
    assert torch.equal(written(model, first, **more), written(model, second, **more))
    assert first.prompts._prompt_mask.sum() == second.prompts._prompt_mask.sum() == 32


def test_without_a_prompt_in_it_the_whole_block_is_biased(model, options):
    marking = DllmarkScheduler(model, **options)
    block = torch.full((2, 8), MASK)
    marking.step(model(block).logits, 0, block, mask_token_id=MASK)
    assert marking.biased == 16


def test_each_text_of_a_batch_is_marked(model, options, p_value):
    prompts = torch.tensor([[5, 9, 17, 4, 30], [6, 8, 20, 21, 3]])
    texts = written(model, DllmarkScheduler(model, **options), input_ids=prompts)
    for prompt, text in zip(prompts, texts, strict=True):
        assert p_value(torch.cat([prompt, text]), 5) < 1e-6


def test_settings_are_those_of_the_base_class_and_the_key_is_none(model, options, small_key):
    made = DllmarkScheduler(model, **options, block_length=16, threshold=0.5)
    assert isinstance(made, diffusers.BlockRefinementScheduler)
    assert made.config.block_length == 16
    assert made.config.threshold == 0.5
    shown = repr(made) + str(dict(made.config)) + made.to_json_string()
    assert small_key.secret.reveal().hex() not in shown
    assert "sixteen bytes ok" not in shown
    assert "WatermarkKey" not in shown
    made.idle = False


def test_the_model_of_another_pipeline_is_refused(model, options, small_tokenizer):
    other = small_toy(small_tokenizer)
    marking = DllmarkScheduler(other, **options)
    with pytest.raises(DllmarkError, match=r"pipe\.model"):
        written(model, marking)
    marking.idle = False


def test_a_model_that_ran_on_something_else_is_refused(model, options):
    marking = DllmarkScheduler(model, **options)
    block = torch.full((1, 8), MASK)
    model(PROMPT)
    with pytest.raises(DllmarkError, match=r"pipe\.model"):
        marking.step(torch.zeros(1, 8, 37), 0, block, mask_token_id=MASK)
    marking.idle = False


def test_a_scheduler_that_the_pipeline_was_never_given_says_so(model, options):
    with pytest.warns(RuntimeWarning, match="never called"):
        DllmarkScheduler(model, **options)
        written(model, diffusers.BlockRefinementScheduler(), gen_length=8)
        gc.collect()


def test_random_tokens_in_place_of_masks_are_refused(model, options):
    marking = DllmarkScheduler(model, **options)
    with pytest.raises(DllmarkError, match="DiffusionGemma"):
        marking.step(torch.zeros(1, 8, 37), 0, torch.full((1, 8), 5))
    marking.idle = False


def test_a_mask_that_is_a_word_is_refused(model, options):
    marking = DllmarkScheduler(model, **options)
    with pytest.raises(DllmarkError, match="no mask"):
        written(model, marking, mask_token_id=9)
    marking.idle = False


def test_a_vocabulary_that_does_not_fit_is_refused(model, options):
    narrow(model, 20)
    with pytest.raises(MismatchError):
        written(model, DllmarkScheduler(model, **options), input_ids=PROMPT.clamp(max=19))


def test_a_missing_key_file_is_refused(model, tmp_path):
    with pytest.raises(KeyFileError):
        DllmarkScheduler(model, tmp_path / "none.key")


def test_the_model_forgets_a_scheduler_that_is_gone(model, options):
    marking = DllmarkScheduler(model, **options)
    marking.idle = False
    gone = weakref.ref(marking)
    assert model._forward_pre_hooks
    del marking
    gc.collect()
    assert gone() is None
    assert not model._forward_pre_hooks
