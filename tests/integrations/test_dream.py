"""The hook for Dream, in a stand-in of Dream's documented loop (Dream's code is not on PyPI)."""

import gc

import pytest
import torch
from toys import MASK, PROMPT, DreamStandIn

from dllmark.errors import DllmarkError, MismatchError
from dllmark.integrations.dream import DllmarkLogitsHook
from dllmark.marking.strategies import ENGINE_DEFAULT
from dllmark.marking.watermark import Watermark


@pytest.fixture
def model(small_tokenizer):
    return DreamStandIn(35, 37)


@pytest.fixture
def hook(small_key, small_tokenizer):
    return DllmarkLogitsHook(small_key, delta=4.0, tokenizer=small_tokenizer, mask_id=MASK)


@pytest.mark.parametrize("options", [
    {"alg": "entropy"}, {"alg": "entropy", "temperature": 0.5}, {"alg": "origin"},
])  # fmt: skip
def test_the_text_is_marked_with_the_hook_and_only_with_it(model, hook, p_value, options):
    generate = {"max_new_tokens": 96, "steps": 48, **options}
    marked = model.diffusion_generate(PROMPT, **generate, generation_logits_hook_func=hook)
    plain = model.diffusion_generate(PROMPT, **generate)
    assert (marked != MASK).all()
    assert p_value(marked[0], 5) < 1e-6
    assert p_value(plain[0], 5) > 1e-3
    hook.check()


def test_it_biases_the_masks_and_neither_prompt_nor_padding(hook, small_key, small_tokenizer):
    x = torch.tensor([[0, 0, 5, MASK, 8, MASK], [6, 7, 5, MASK, MASK, MASK]])
    logits = torch.randn(2, 6, 37)
    before = logits.clone()
    assert hook(0, x, logits) is logits
    masked = x == MASK
    watermark = Watermark(small_key, ENGINE_DEFAULT.name, 4.0, tokenizer=small_tokenizer)
    expected = watermark.bias(x, ~masked, before, torch.arange(6).expand(2, -1))
    assert torch.equal(logits, torch.where(masked[..., None], expected, before))
    assert hook.biased == 5


def test_an_adaptive_mark_knows_what_the_model_wrote(model, small_key, small_tokenizer):
    """Whatever comes one after the other through one hook: the prompt never counts."""
    adaptive, count = "adaptive-bidirectional", 0
    hook = DllmarkLogitsHook(small_key, adaptive, 4.0, tokenizer=small_tokenizer, mask_id=MASK)
    watermark = Watermark(small_key, adaptive, 4.0, tokenizer=small_tokenizer)

    def compare(step, x, logits):
        nonlocal count
        masked, before = x == MASK, logits.clone()
        given, everywhere = (
            (torch.arange(x.shape[1]) < length)[None],
            torch.arange(x.shape[1])[None],
        )
        expected = watermark.bias(x, ~masked, before, everywhere, prompt_mask=given)
        without = watermark.bias(x, ~masked, before, everywhere)
        hook(step, x, logits)
        assert torch.equal(logits, torch.where(masked[..., None], expected, before))
        count += not torch.equal(expected, without)
        return logits

    prompt = PROMPT
    for _ in range(3):  # a conversation: each text is in the next prompt
        length = prompt.shape[1]
        text = model.diffusion_generate(
            prompt, max_new_tokens=24, steps=24, generation_logits_hook_func=compare
        )
        prompt = torch.cat([text, PROMPT.flip(1)], 1)
    hook.check()
    assert count > 24  # else it would not matter what is prompt


def test_a_sampler_that_never_calls_the_hook_is_noticed(small_key, small_tokenizer, hook):
    deaf = DreamStandIn(35, 37, deaf=True)
    generate = {"max_new_tokens": 8, "steps": 4}
    with pytest.raises(DllmarkError, match="never called"), hook:
        deaf.diffusion_generate(PROMPT, **generate, generation_logits_hook_func=hook)
    with pytest.warns(RuntimeWarning, match="never called"):
        deaf.diffusion_generate(
            PROMPT, **generate,
            generation_logits_hook_func=DllmarkLogitsHook(
                small_key, tokenizer=small_tokenizer, mask_id=MASK
            ),
        )  # fmt: skip
        gc.collect()


def test_logits_of_a_part_of_the_text_are_refused(hook):
    with pytest.raises(DllmarkError, match="do not cover"):
        hook(0, PROMPT, torch.zeros(1, 3, 37))


def test_a_model_that_does_not_fit_the_key_is_refused(hook):
    small = DreamStandIn(20, 20)
    with pytest.raises(MismatchError, match="different models"):
        small.diffusion_generate(
            PROMPT, max_new_tokens=8, steps=4, generation_logits_hook_func=hook
        )


def test_a_mask_that_is_a_word_is_refused(small_key, small_tokenizer):
    with pytest.raises(DllmarkError, match="no mask"):
        DllmarkLogitsHook(small_key, tokenizer=small_tokenizer, mask_id=9)
