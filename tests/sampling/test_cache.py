"""The cache: exact where nothing it keeps can change, and the mark works with it."""

import pytest
import torch
from tiny import PROMPTS, padded, tiny_model, written

from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError
from dllmark.marking.watermark import Watermark
from dllmark.models.transformer import Cache
from dllmark.sampling.settings import Dream, Llada, Parallel
from dllmark.sampling.texts import generate

CACHES = ["prefix", "block", "window"]

SAMPLERS = {
    "llada": lambda cache: Llada(steps=16, block_length=8, temperature=0.7, cache=cache),
    "remask": lambda cache: Llada(
        steps=16, block_length=16, remask=0.3, cache=cache, temperature=0
    ),
    "parallel": lambda cache: Parallel(block_length=8, threshold=0.3, cache=cache, temperature=0),
}


@pytest.mark.parametrize("shifted", [False, True])
def test_a_part_of_the_pass_gives_what_the_whole_gives_if_nothing_else_changed(
    small_tokenizer, shifted
):
    model = tiny_model(small_tokenizer, shifted=shifted)
    tokens, attended, start = padded(model, PROMPTS, 32)
    cache = Cache(model.config, tokens, torch.float32)
    covered = torch.arange(start, start + 9).expand(len(tokens), -1)
    whole = model.transformer(tokens, attended, covered, cache)
    assert torch.equal(whole, model.transformer(tokens, attended, covered))
    part = model.transformer(tokens, attended, covered, cache, torch.arange(start, start + 9))
    torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("shifted", [False, True])
def test_with_one_layer_nothing_is_approximate(small_tokenizer, name, cache, shifted):
    """Keys and values of the first layer depend on their own token alone."""
    model = tiny_model(small_tokenizer, layers=1, shifted=shifted)
    expected = written(model, SAMPLERS[name]("none"))
    assert torch.equal(written(model, SAMPLERS[name](cache)), expected)


@pytest.mark.parametrize("cache", ["prefix", "block"])
def test_a_block_of_one_step_is_written_as_without_a_cache(model, cache):
    expected = written(model, Llada(steps=4, block_length=8, temperature=0))
    assert torch.equal(
        written(model, Llada(steps=4, block_length=8, cache=cache, temperature=0)), expected
    )


@pytest.mark.parametrize(("shifted", "before", "past"), [(False, 0, 1), (True, 1, 0)])
def test_a_cache_computes_fewer_positions(small_tokenizer, monkeypatch, shifted, before, past):
    """In a shifted model the position before a block takes part, and none past it."""
    model = tiny_model(small_tokenizer, shifted=shifted)
    layer, widths = model.transformer.blocks[0], []
    forward = layer.forward

    def counted(x, *others):
        widths.append(x.shape[1])
        return forward(x, *others)

    monkeypatch.setattr(layer, "forward", counted)
    whole = {}
    for cache in ("none", *CACHES):
        widths.clear()
        written(model, Llada(steps=6, block_length=16, cache=cache, temperature=0))
        whole[cache] = widths.copy()
    every = whole["none"][0]
    assert whole["none"] == [every] * 6
    first, last = 32 + before, 16 + before
    assert whole["prefix"] == [every, first, first, every, last, last]
    assert whole["block"] == [every, last + past, last + past, every, last, last]
    assert whole["window"] == [every, last + past, last + past, first, last, last]


def test_a_short_last_block_begins_with_all_of_the_block_before_it(small_tokenizer, monkeypatch):
    model = tiny_model(small_tokenizer)
    computed, forward = [], model.transformer.forward

    def noted(tokens, attended, asked, cache, at, *others):
        computed.append(None if at is None else at.tolist())
        return forward(tokens, attended, asked, cache, at, *others)

    monkeypatch.setattr(model.transformer, "forward", noted)
    sampler = Llada(steps=4, block_length=12, temperature=0, cache="window")
    generate(model, PROMPTS[:1], None, sampler, tokens=20, chat=False)
    start = computed[1][0]
    first = [*range(start, start + 13)]
    assert computed == [None, first, first, [*range(start, start + 20)]]


@pytest.mark.parametrize("cache", CACHES)
def test_a_text_written_with_a_cache_carries_the_mark(model, small_key, cache):
    watermark = Watermark(small_key, delta=6.0, tokenizer=model.tokenizer)
    sampler = Llada(steps=32, block_length=32, temperature=1.0, cache=cache)
    [text] = generate(model, ["w1 w2"], watermark, sampler, tokens=64, chat=False)
    assert Detector(small_key, model.tokenizer).detect(text.ids).p_value < 1e-4


def test_a_cache_that_cannot_be_is_refused():
    with pytest.raises(
        DllmarkError, match="no cache 'all': choose one of none, prefix, block, window"
    ):
        Parallel(cache="all")
    with pytest.raises(DllmarkError, match="does not work with a cache"):
        Llada(cfg_scale=1.0, cache="prefix")
    with pytest.raises(TypeError):
        Dream(cache="prefix")
