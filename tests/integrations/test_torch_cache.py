"""The forward hook in loops that give the model a cache and a part of the text, as Fast-dLLM's."""

import pytest
import torch
from cached_toys import CachedToy, fast_dllm_generate
from toys import MASK, PROMPT, llada_generate

from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError
from dllmark.integrations.torch import watermarked
from dllmark.marking.strategies import ENGINE_DEFAULT
from dllmark.marking.watermark import Watermark

TEXT = torch.tensor([[5, 9, 17, 4, MASK, MASK, 8, MASK, MASK, 11]])


@pytest.fixture
def model(small_tokenizer):
    return CachedToy(35, 37)


@pytest.fixture
def dream(small_tokenizer):
    return CachedToy(35, 37, shifted=True)


@pytest.fixture
def options(small_key, small_tokenizer):
    return {"key": small_key, "delta": 4.0, "tokenizer": small_tokenizer}


@pytest.fixture
def bias(small_key, small_tokenizer):
    """The watermark's own bias of some positions of a text, given the logits of only those."""
    watermark = Watermark(small_key, ENGINE_DEFAULT.name, 4.0, tokenizer=small_tokenizer)

    def bias(text, logits, positions):
        at = torch.tensor([positions])
        biased = watermark.bias(text, text != MASK, logits, at, at)
        return torch.where((text[:, positions] == MASK)[..., None], biased, logits)

    return bias


def replaced(start, end):
    mask = torch.zeros_like(TEXT, dtype=torch.bool)
    mask[:, start:end] = True
    return mask


def cut(cache, start):
    return [tuple(tensor[..., :start, :] for tensor in layer) for layer in cache]


@pytest.mark.parametrize("strategy", [ENGINE_DEFAULT.name, "adaptive-bidirectional"])
def test_with_a_prefix_cache_the_text_is_the_one_without(model, options, p_value, strategy):
    options = {**options, "strategy": strategy}
    with watermarked(model, **options) as mark:
        cached = fast_dllm_generate(model, PROMPT, dual=False)
    with watermarked(model, **options) as plain:
        assert torch.equal(cached, llada_generate(model, PROMPT))
    assert mark.biased == plain.biased == sum(range(64, 0, -2))
    assert p_value(cached[0], 5) < 1e-6
    assert p_value(fast_dllm_generate(model, PROMPT, dual=False)[0], 5) > 1e-3


def test_with_a_dual_cache_only_the_rows_it_computes_are_biased(model, options, p_value):
    with watermarked(model, **options) as mark:
        cached = fast_dllm_generate(model, PROMPT, dual=True)
    # A whole call for each block, then the block's masks alone.
    assert mark.biased == 64 + sum(range(30, 0, -2)) + 32 + sum(range(30, 0, -2))
    assert p_value(cached[0], 5) < 1e-6
    assert p_value(fast_dllm_generate(model, PROMPT, dual=True)[0], 5) > 1e-3


@pytest.mark.parametrize("shifted", [False, True])
def test_an_adaptive_mark_is_weaker_where_a_text_is_ahead(options, p_value, shifted):
    """With a dual cache, where the model is shown one block."""
    toy, greens = CachedToy(35, 37, shifted=shifted), []
    detector = Detector(options["key"], options["tokenizer"])
    for strategy in ("fresh-bidirectional", "adaptive-bidirectional"):
        with watermarked(toy, **options, strategy=strategy):
            text = fast_dllm_generate(toy, PROMPT, dual=True)[0]
        assert p_value(text, 5) < 1e-6
        greens.append(detector.detect(text[5:].tolist()).green_fraction)
    assert greens[1] < greens[0] - 0.05


@pytest.mark.parametrize("dual", [False, True])
def test_dreams_shifted_logits_are_marked_with_either_cache(dream, options, p_value, dual):
    with watermarked(dream, **options):
        cached = fast_dllm_generate(dream, PROMPT, dual)
    assert (cached != MASK).all()
    assert p_value(cached[0], 5) < 1e-6
    assert p_value(fast_dllm_generate(dream, PROMPT, dual)[0], 5) > 1e-3


@pytest.mark.parametrize("dual", [False, True])
def test_no_strength_changes_nothing_with_either_cache(model, options, dual):
    with watermarked(model, **{**options, "delta": 0.0}):
        none = fast_dllm_generate(model, PROMPT, dual)
    assert torch.equal(none, fast_dllm_generate(model, PROMPT, dual))


@pytest.mark.parametrize("dual", [False, True])
def test_each_text_of_a_batch_is_marked(model, options, p_value, dual):
    prompts = torch.tensor([[0, 0, 9, 17, 4], [5, 9, 17, 4, 30]])
    with watermarked(model, **options):
        cached = fast_dllm_generate(model, prompts, dual)
    assert all(p_value(text, 5) < 1e-6 for text in cached)


def test_the_tokens_beside_a_part_are_those_of_the_text_that_was_cached(model, options, bias):
    plain = model(TEXT).logits
    with watermarked(model, **options):
        cache = model(TEXT, use_cache=True).past_key_values
        rest = model(TEXT[:, 4:], past_key_values=cut(cache, 4), use_cache=True)
        part = model(TEXT[:, 4:6], past_key_values=cache, replace_position=replaced(4, 6))
        within = model(TEXT[:, 7:9], past_key_values=cache, replace_position=replaced(7, 9))
    assert torch.equal(rest.logits, bias(TEXT, plain[:, 4:], list(range(4, 10))))
    assert torch.equal(part.logits, bias(TEXT, plain[:, 4:6], [4, 5]))
    assert torch.equal(within.logits, bias(TEXT, plain[:, 7:9], [7, 8]))
    assert not torch.equal(part.logits, bias(TEXT[:, 4:6], plain[:, 4:6], [0, 1]))


def test_shifted_rows_are_biased_for_the_token_after_each(dream, options, bias):
    text = TEXT.clone()
    text[0, 4] = 12
    plain = dream(text).logits
    with watermarked(dream, **options):
        cache = dream(text, use_cache=True).past_key_values
        rest = dream(text[:, 4:], past_key_values=cut(cache, 4), use_cache=True)
        part = dream(text[:, 4:7], past_key_values=cache, replace_position=replaced(4, 7))
    assert torch.equal(rest.logits[:, :-1], bias(text, plain[:, 4:-1], list(range(5, 10))))
    expected = bias(text, plain[:, 4:7], [5, 6, 7])
    assert torch.equal(part.logits[:, :2], expected[:, :2])
    assert torch.equal(part.logits[:, 2], plain[:, 6])  # of the token after the part


def test_of_another_texts_cache_or_a_copy_nothing_beside_the_part_is_taken(model, options, bias):
    other = TEXT.flip(1).clone()
    other[0, 0] = 5
    part, plain = TEXT[:, 4:6], model(TEXT).logits[:, 4:6]
    alone = bias(part, plain, [0, 1])
    place = {"replace_position": replaced(4, 6)}
    with watermarked(model, **options):
        cache = model(TEXT, use_cache=True).past_key_values
        copied = [tuple(tensor.clone() for tensor in layer) for layer in cache]
        from_copy = model(part, past_key_values=copied, **place)
        model(other, use_cache=True)
        from_other = model(part, past_key_values=cache, **place)
    assert torch.equal(from_copy.logits, alone)
    assert torch.equal(from_other.logits, alone)


def test_a_part_that_the_cached_text_has_no_place_for_gets_no_neighbours(model, options, bias):
    both = TEXT.repeat(2, 1)[:, 4:6]
    plain = model(both).logits
    with watermarked(model, **options):
        cache = model(TEXT, use_cache=True).past_key_values
        tiled = [tuple(tensor.expand(2, -1, -1, -1) for tensor in layer) for layer in cache]
        marked = model(both, past_key_values=cut(tiled, 0))
    assert torch.equal(marked.logits, torch.cat([bias(both[:1], plain[:1], [0, 1])] * 2))


def test_a_cache_of_a_kind_we_do_not_know_gives_no_neighbours(options, model, bias):
    class Opaque(torch.nn.Module):
        config = model.config

        def forward(self, input_ids, past_key_values=None):
            return model(input_ids)

    opaque, part = Opaque(), TEXT[:, 3:8]
    plain = model(part).logits
    with watermarked(opaque, **options) as mark:
        marked = opaque(part, past_key_values=object())
    assert mark.biased == 3
    assert torch.equal(marked.logits, bias(part, plain, list(range(5))))


@pytest.mark.parametrize("positions", [[[4, 6], [4, 6]], [[4, 5], [5, 6]]])
def test_positions_that_are_no_run_are_refused(model, options, positions):
    texts = TEXT.repeat(2, 1)
    scattered = torch.zeros_like(texts, dtype=torch.bool)
    scattered[torch.arange(2)[:, None], torch.tensor(positions)] = True
    with pytest.raises(DllmarkError, match="not one run"), watermarked(model, **options):
        cache = model(texts, use_cache=True).past_key_values
        model(texts[:, 4:6], past_key_values=cache, replace_position=scattered)


def test_a_shifted_part_that_begins_with_a_mask_is_refused(dream, options):
    with pytest.raises(DllmarkError, match="first token of a part"), watermarked(dream, **options):
        cache = dream(TEXT, use_cache=True).past_key_values
        dream(TEXT[:, 4:], past_key_values=cut(cache, 4), use_cache=True)
