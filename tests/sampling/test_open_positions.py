"""A CPU computes logits only where something is yet to be written, and writes the same texts."""

import pytest

from dllmark.marking.watermark import Watermark
from dllmark.sampling.denoiser import Denoiser
from dllmark.sampling.settings import Dream, Llada, Parallel
from dllmark.sampling.texts import generate, generate_both

SAMPLERS = {
    "llada": Llada(16, 16, 1.0),
    "random": Llada(16, 16, 1.0, order="random"),
    "guided": Llada(16, 16, 1.0, cfg_scale=1.0),
    "remask": Llada(16, 16, 1.0, remask=0.3),
    "cached": Llada(16, 16, 1.0, cache="block"),
    "dream": Dream(16, temperature=1.0, alg_temp=0.5),
    "parallel": Parallel(0.1, 16, 1.0),
}


@pytest.fixture
def mark(small_key, small_tokenizer):
    return Watermark(small_key, tokenizer=small_tokenizer)


def everywhere(monkeypatch):
    """Have logits and noise computed for every position."""
    monkeypatch.setattr(Denoiser, "_open", lambda denoiser, at: None)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_texts_are_those_of_logits_for_every_position(model, mark, monkeypatch, name):
    few = generate(model, ["w1", "w2 w3"], mark, SAMPLERS[name], tokens=32, seed=3)
    everywhere(monkeypatch)
    assert generate(model, ["w1", "w2 w3"], mark, SAMPLERS[name], tokens=32, seed=3) == few


def test_so_are_those_of_a_text_beside_its_unmarked_one(model, mark, monkeypatch):
    few = generate_both(model, "w1", mark, SAMPLERS["llada"], tokens=32, seed=3)
    everywhere(monkeypatch)
    assert generate_both(model, "w1", mark, SAMPLERS["llada"], tokens=32, seed=3) == few


def test_logits_are_computed_for_what_is_masked_and_the_position_past_the_block(
    model, mark, monkeypatch
):
    asked, forward = [], model.transformer.forward

    def noted(tokens, attended, logit_positions, *rest):
        asked.append(logit_positions.shape[1])
        return forward(tokens, attended, logit_positions, *rest)

    monkeypatch.setattr(model.transformer, "forward", noted)
    generate(model, ["w1"], mark, Llada(8, 8, 1.0), tokens=16)
    assert asked == [8 + 1, 6 + 1, 4 + 1, 2 + 1, 8, 6, 4, 2]
