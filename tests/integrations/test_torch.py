"""The forward hook, in LLaDA's official loop, written out in `toys.py`."""

from types import SimpleNamespace

import pytest
import torch
from toys import MASK, PROMPT, DreamStandIn, llada_generate, narrow, small_toy

from dllmark.errors import DllmarkError, KeyFileError, MismatchError
from dllmark.integrations.torch import watermarked
from dllmark.marking.watermark import Watermark


@pytest.fixture
def model(small_tokenizer):
    return small_toy(small_tokenizer)


@pytest.fixture
def options(small_key, small_tokenizer):
    return {"key": small_key, "delta": 4.0, "tokenizer": small_tokenizer}


def test_the_text_is_marked_inside_the_block_and_only_there(model, options, p_value):
    with watermarked(model, **options) as mark:
        marked = llada_generate(model, PROMPT)
    assert p_value(marked[0], 5) < 1e-6
    assert p_value(llada_generate(model, PROMPT)[0], 5) > 1e-3
    # 32 steps, the masks of both blocks each: 64, 62, ...
    assert mark.biased == sum(range(64, 0, -2))


def test_each_text_of_a_batch_is_marked_and_padding_changes_nothing(model, options, p_value):
    prompts = torch.tensor([[0, 0, 9, 17, 4], [5, 9, 17, 4, 30]])
    with watermarked(model, **options):
        marked = llada_generate(model, prompts)
    assert all(p_value(text, 5) < 1e-6 for text in marked)
    assert torch.equal(marked[:, :5], prompts)


@pytest.mark.parametrize("after", [PROMPT.flip(1), PROMPT[:, :0]], ids=["asked", "continued"])
def test_an_adaptive_mark_knows_what_the_model_wrote(model, options, after):
    """The prompt never counts: no earlier answer in it, not even one that is to go on."""
    adaptive, prompt, seen = "adaptive-bidirectional", PROMPT, []
    plain, mark = (
        type(model).forward,
        Watermark(options["key"], adaptive, 4.0, tokenizer=options["tokenizer"]),
    )
    with watermarked(model, **options, strategy=adaptive):
        model.register_forward_hook(lambda _, args, out: seen.append((args[0].clone(), out.logits)))
        for _ in range(3):
            text = llada_generate(model, prompt, gen_length=32, steps=16)
            for x, logits in seen:
                masked, everywhere = x == MASK, torch.arange(x.shape[1])[None]
                before, given = plain(model, x).logits, everywhere < prompt.shape[1]
                expected = mark.bias(x, ~masked, before, everywhere, prompt_mask=given)
                assert torch.equal(logits, torch.where(masked[..., None], expected, before))
            seen.clear()
            prompt = torch.cat([text, after], 1)


@pytest.mark.parametrize("said", [{}, {"shifted": True}])
def test_shifted_logits_are_marked_before_the_loop_shifts_them(options, p_value, said):
    model = DreamStandIn(35, 37)
    with watermarked(model, **options, **said):
        marked = llada_generate(model, PROMPT, shifted=True)
    assert p_value(marked[0], 5) < 1e-6
    with watermarked(model, **options, shifted=False):
        missed = llada_generate(model, PROMPT, shifted=True)
    assert p_value(missed[0], 5) > 1e-3


@pytest.mark.parametrize("answer", [lambda logits: logits, lambda logits: (logits, None)])
def test_a_model_may_return_its_logits_bare(options, model, answer):
    class Bare(torch.nn.Module):
        def forward(self, input_ids):
            return answer(model(input_ids).logits)

    x = torch.tensor([[5, MASK, 7]])
    bare = Bare()
    with watermarked(bare, **options, mask_id=MASK):
        marked = bare(x)
    marked = marked[0] if isinstance(marked, tuple) else marked
    changed = (marked != model(x).logits).any(-1)
    assert changed.tolist() == [[False, True, False]]


def test_tokens_may_be_given_by_name(model, options):
    with watermarked(model, **options) as mark:
        model(input_ids=torch.tensor([[5, MASK]]))
    assert mark.biased == 1


def test_a_loop_that_never_calls_the_model_is_refused(model, options):
    with pytest.raises(DllmarkError, match="nothing is marked"), watermarked(model, **options):
        pass


def test_a_text_without_masks_is_refused(model, options):
    with pytest.raises(DllmarkError, match="nothing is marked"), watermarked(model, **options):
        model(PROMPT)


def test_guidance_is_refused(model, options):
    with pytest.raises(DllmarkError, match="guidance"), watermarked(model, **options):
        llada_generate(model, PROMPT, cfg_scale=1.0)


@pytest.mark.parametrize("given", [{"inputs_embeds": 1}, {"input_ids": torch.zeros(1, 4)}])
def test_a_model_called_without_token_ids_is_refused(options, given):
    class Odd(torch.nn.Module):
        def forward(self, **given):
            return torch.zeros(1, 4, 37)

    odd = Odd()
    with (
        pytest.raises(DllmarkError, match="token ids"),
        watermarked(odd, **options, mask_id=MASK),
    ):
        odd(**given)


def test_logits_of_the_last_token_alone_are_refused(options, model):
    class Last(torch.nn.Module):
        def forward(self, input_ids):
            return SimpleNamespace(logits=model(input_ids).logits[:, -1:])

    last = Last()
    with (
        pytest.raises(DllmarkError, match="do not cover"),
        watermarked(last, **options, mask_id=MASK),
    ):
        last(torch.tensor([[5, 6, MASK]]))


def test_no_logits_at_all_are_refused(options):
    class Nothing(torch.nn.Module):
        def forward(self, input_ids):
            return SimpleNamespace(loss=0.0)

    nothing = Nothing()
    with (
        pytest.raises(DllmarkError, match="returned no logits"),
        watermarked(nothing, **options, mask_id=MASK),
    ):
        nothing(torch.tensor([[5, MASK]]))


def test_a_model_that_names_no_mask_needs_one(options):
    with (
        pytest.raises(DllmarkError, match="mask_id"),
        watermarked(torch.nn.Linear(2, 2), **options),
    ):
        pass


def test_a_vocabulary_that_does_not_fit_is_refused(options, model):
    narrow(model, 20)
    with pytest.raises(MismatchError), watermarked(model, **options), torch.no_grad():
        model(torch.tensor([[5, MASK]]))


def test_a_missing_key_file_stops_it_before_anything_is_written(model, tmp_path):
    with pytest.raises(KeyFileError), watermarked(model, tmp_path / "none.key"):
        pytest.fail("the block ran")


def test_the_hook_is_gone_after_an_error(model, options):
    with pytest.raises(ZeroDivisionError), watermarked(model, **options):
        _ = 1 / 0
    assert not model._forward_hooks
