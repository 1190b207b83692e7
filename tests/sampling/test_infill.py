"""Filling masks in given texts: what a slow and obvious loop writes, and nothing else changes."""

from collections import Counter

import numpy as np
import pytest
import torch
from tiny import END, MASK, forbid, scripted_model, tiny_model

from dllmark.errors import DllmarkError
from dllmark.sampling.infill import infill

KINDS = {
    "bidirectional": {},
    "shifted": {"shifted": True},
    "block-causal": {"block_causal": True, "block_length": 8, "qk_norm": True},
}


def text(length, seed=0):
    return np.random.default_rng(seed).integers(3, 35, length)


def naive(model, ids, positions, threshold=0.95):
    """The likeliest token at the mask the model is most certain of, and so on."""
    size = model.config.block_length
    tokens = torch.from_numpy(ids.copy())[None]
    tokens[0, positions] = MASK
    masks = sorted(positions.tolist())
    while masks:
        logits = forbid(model, model.transformer(tokens, block_length=size or 0))
        logits[..., END] = -torch.inf
        p = logits[0].softmax(-1)
        within = [at for at in masks if not size or at // size == masks[0] // size]
        best = max(within, key=lambda at: float(p[at].max()))
        sure = [at for at in within if size and float(p[at].max()) > threshold]
        for at in {best, *sure}:
            tokens[0, at] = p[at].argmax()
            masks.remove(at)
    return tokens[0].tolist()


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_masks_are_filled_as_by_a_naive_loop(small_tokenizer, options, ratio):
    model = tiny_model(small_tokenizer, **options)
    for length, seed in ((29, 1), (32, 2), (5, 3)):
        ids = text(length, seed)
        at = np.random.default_rng(seed).permutation(length)[: max(1, round(ratio * length))]
        [filled] = infill(model, [ids], [at], temperature=0)
        with torch.inference_mode():
            assert filled.tolist() == naive(model, ids, at)
        kept = np.setdiff1d(np.arange(length), at)
        assert filled[kept].tolist() == ids[kept].tolist()
        assert not np.isin(filled, [END, MASK]).any()


def test_a_text_is_filled_alone_as_in_a_batch_of_other_lengths(model):
    texts = [text(20, 1), text(7, 2), text(33, 3)]
    positions = [np.array([0, 4, 19]), np.array([], dtype=np.int64), np.arange(10, 30)]
    together = infill(model, texts, positions, temperature=0)
    for ids, at, filled in zip(texts, positions, together, strict=True):
        assert filled.tolist() == infill(model, [ids], [at], temperature=0)[0].tolist()


def test_tokens_are_drawn_as_often_as_the_model_expects(small_tokenizer):
    model = scripted_model(small_tokenizer, [{5: 0.6, 9: 0.3}] * 2)
    drawn = Counter()
    for seed in range(40):  # each of 25 texts has one mask
        texts = [np.array([4, 7, 8])] * 25
        masks = [np.array([1])] * 25
        drawn.update(int(ids[1]) for ids in infill(model, texts, masks, temperature=1, seed=seed))
    expected = {5: 600, 9: 300}
    for token, count in expected.items():
        assert abs(drawn[token] - count) < 5 * np.sqrt(count)


def test_the_seed_decides_and_the_given_texts_stay(model):
    texts, positions = [text(30)], [np.arange(30)]
    first, same, other = (
        infill(model, texts, positions, temperature=1, seed=seed)[0].tolist() for seed in (1, 1, 2)
    )
    assert first == same != other
    assert texts[0].tolist() == text(30).tolist()


def test_a_text_without_masks_is_not_shown_to_the_model(model, monkeypatch):
    monkeypatch.setattr(model.transformer, "forward", None)
    [same] = infill(model, [text(9)], [np.array([], dtype=np.int64)])
    assert same.tolist() == text(9).tolist()


def test_a_block_causal_model_fills_the_texts_of_a_batch_one_by_one(small_tokenizer):
    causal = tiny_model(small_tokenizer, **KINDS["block-causal"])
    texts, positions = [text(20, 1), text(9, 2)], [np.arange(5), np.array([0, 8])]
    together = infill(causal, texts, positions, temperature=0)
    for ids, at, filled in zip(texts, positions, together, strict=True):
        assert filled.tolist() == infill(causal, [ids], [at], temperature=0)[0].tolist()
    twins = infill(causal, [text(30)] * 2, [np.arange(30)] * 2, temperature=1)
    assert twins[0].tolist() != twins[1].tolist()


def test_a_text_too_long_is_refused(model):
    with pytest.raises(DllmarkError, match="a text has 161 tokens, and tiny takes 160"):
        infill(model, [text(161)], [np.array([0])])
