"""LLaDA2's sampler writes what diffusers' own pipeline writes with the same model, and marks it."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from tiny import END, MASK, forbid, scripted_model, steps_of, tiny_model, written
from torch import nn

from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError
from dllmark.marking.strategies import BIASES, DEFAULT
from dllmark.marking.watermark import Watermark
from dllmark.sampling.settings import Dream, Llada, Llada2, Parallel
from dllmark.sampling.texts import generate

BLOCK = 8
PROMPT = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11"  # ends inside the second block
EDITS = {"threshold": 0.3, "edit_threshold": 0.25}


@pytest.fixture(scope="module")
def model(small_tokenizer):
    return tiny_model(small_tokenizer, block_causal=True, qk_norm=True)


def sampler(**options):
    return Llada2(**{"block_length": BLOCK, "temperature": 0, **options})


class Published(nn.Module):
    """Our transformer as the pipeline calls a model."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, attention_mask=None, position_ids=None):
        logits = self.model.transformer(tokens, block_length=BLOCK)
        return SimpleNamespace(logits=forbid(self.model, logits))


def by_diffusers(model, tokens, threshold, edit_threshold=None):
    """What diffusers 0.42 writes after the prompt."""
    diffusers = pytest.importorskip("diffusers", "0.42", reason="it needs Python 3.11")
    pipe = diffusers.LLaDA2Pipeline(Published(model), diffusers.BlockRefinementScheduler())
    pipe.set_progress_bar_config(disable=True)
    prompt = torch.as_tensor(model.tokenizer.encode(PROMPT))[None]
    return pipe(
        input_ids=prompt, output_type="seq", gen_length=tokens, block_length=BLOCK,
        num_inference_steps=BLOCK, threshold=threshold, editing_threshold=edit_threshold,
        mask_token_id=MASK, eos_token_id=END, eos_early_stop=False,
        max_post_steps=Llada2.edit_steps - 1,  # it checks after a step, the published code before
    ).sequences[0]  # fmt: skip


@pytest.mark.parametrize("options", [
    {"threshold": 0.95}, {"threshold": 0.3}, EDITS, {"threshold": 0.15, "edit_threshold": 0.1},
])  # fmt: skip
def test_it_writes_what_the_pipeline_of_diffusers_writes(model, options):
    expected = by_diffusers(model, 29, **options)
    ours = written(model, sampler(suppress_end=False, **options), prompts=[PROMPT], tokens=29)
    start = len(model.tokenizer.encode(PROMPT))
    ids = ours[0, start : start + 29].tolist()
    end = ids.index(END) if END in ids else len(ids)
    assert ids[:end] == expected[:end].tolist()
    assert end > BLOCK  # more than one block was compared


def changes(steps):
    """How many tokens that were written before each step replaced."""
    return [int(((a.tokens != b.tokens) & a.revealed).sum()) for a, b in pairwise(steps)]


def test_tokens_are_replaced_exactly_where_that_is_asked_for(model):
    options = {"prompts": [PROMPT], "tokens": 45}
    assert sum(changes(steps_of(model, sampler(threshold=0.3), **options))) == 0
    assert sum(changes(steps_of(model, sampler(**EDITS), **options))) > 0


@pytest.mark.parametrize(("edit", "steps"), [(None, 7), (0.5, 8)])
def test_editing_stops_when_nothing_changes(small_tokenizer, edit, steps):
    model = scripted_model(small_tokenizer, [{5: 0.9}] * 7, block_causal=True)
    one = sampler(edit_threshold=edit)
    assert len(steps_of(model, one, prompts=["w1"], tokens=7)) == steps


def test_editing_stops_after_so_many_steps(model):
    options = {"prompts": [PROMPT], "tokens": 5}
    counts = [
        len(steps_of(model, sampler(**EDITS, edit_steps=steps), **options)) for steps in (0, 1, 2)
    ]
    assert counts == [counts[0], counts[0] + 1, counts[0] + 2]


def test_no_prompt_is_replaced_and_no_mask_remains(model):
    step = steps_of(model, sampler(**EDITS, suppress_end=True), prompts=[PROMPT], tokens=20)[-1]
    ids = model.tokenizer.encode(PROMPT).tolist()
    assert step.tokens[0, : len(ids)].tolist() == ids
    assert step.tokens.shape[1] == len(ids) + 20
    assert step.revealed.all()
    assert not (step.tokens == MASK).any()


def test_the_last_block_is_whole_while_it_is_written(model):
    """The published code fills it with masks, which its tokens see, and cuts the text after."""
    whole = written(model, sampler(suppress_end=True), prompts=[PROMPT], tokens=21)
    cut = written(model, sampler(suppress_end=True), prompts=[PROMPT], tokens=14)
    assert torch.equal(cut, whole[:, : cut.shape[1]])


def test_a_text_has_no_more_tokens_than_asked_for(model):
    [text] = generate(model, [PROMPT], None, sampler(suppress_end=True), tokens=20, chat=False)
    assert len(text.ids) == 20


def test_writing_stops_with_the_block_that_ends_the_text(model):
    options = {"tokens": 61, "chat": False}
    [endless] = generate(replace(model, end_ids=()), [PROMPT], None, sampler(), **options)
    end, steps = endless.ids[9], []
    ending = replace(model, end_ids=(end,))
    [text] = generate(ending, [PROMPT], None, sampler(), on_step=steps.append, **options)
    assert text.ids == endless.ids[: endless.ids.index(end)]
    assert int(steps[-1].revealed.sum()) % BLOCK == 0
    assert not steps[-1].revealed.all()


def test_texts_do_not_depend_on_those_written_beside_them(model):
    prompts = [PROMPT, "w1", "w2 w3 w4"]
    together = generate(model, prompts, None, sampler(), tokens=20, chat=False, batch_size=3)
    alone = [generate(model, [p], None, sampler(), tokens=20, chat=False)[0] for p in prompts]
    assert together == alone


@pytest.mark.parametrize("strategy", BIASES)
def test_a_watermark_of_no_strength_changes_nothing(model, small_key, strategy):
    none = Watermark(small_key, strategy, 0.0, tokenizer=model.tokenizer)
    warm = {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "suppress_end": True}
    one = sampler(threshold=0.4, edit_threshold=0.2, edit_steps=3, **warm)
    same = {"prompts": ["w1 w2"], "tokens": 14}
    assert torch.equal(written(model, one, none, **same), written(model, one, **same))


@pytest.mark.parametrize("edit", [None, 0.05], ids=["filled", "edited"])
@pytest.mark.parametrize(
    "strategy", ["predictive-bidirectional", DEFAULT.name, "guided-bidirectional"]
)
def test_the_text_is_marked_also_where_it_was_edited(model, small_key, strategy, edit):
    watermark = Watermark(small_key, strategy, 8.0, tokenizer=model.tokenizer)
    one = sampler(edit_threshold=edit, edit_steps=2, temperature=3.0, suppress_end=True)
    detector = Detector(small_key, model.tokenizer)
    marked, plain = (
        generate(model, ["w1 w2"], mark, one, tokens=62, chat=False)[0]
        for mark in (watermark, None)
    )
    assert detector.detect(marked.ids).p_value < 1e-3
    assert detector.detect(plain.ids).p_value > 1e-2


def test_models_and_samplers_that_attend_otherwise_do_not_go_together(model, small_tokenizer):
    for other in (Llada(), Dream(), Parallel()):
        with pytest.raises(DllmarkError, match="no block sees a later one: write with the sampler"):
            generate(model, ["w1"], None, other)
    with pytest.raises(DllmarkError, match="sampler llada2 is for models in which"):
        generate(tiny_model(small_tokenizer), ["w1"], None, Llada2())


def test_blocks_are_as_long_as_those_a_model_was_trained_with(small_tokenizer):
    model = tiny_model(small_tokenizer, block_causal=True, block_length=4)
    with pytest.raises(DllmarkError, match="trained with blocks of 4, and these are of 8: give"):
        generate(model, ["w1"], None, sampler(), chat=False)
    [text] = generate(model, ["w1"], None, sampler(block_length=4), tokens=3, chat=False)
    assert len(text.ids) <= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.0}, r"threshold is a probability, in \(0, 1\]; got 0.0"),
        ({"edit_threshold": 1.5}, r"edit_threshold is a probability, in \(0, 1\]; got 1.5"),
        ({"edit_steps": -1}, "edit_steps is at least 0; got -1"),
        ({"block_length": 0}, "block_length is at least 1; got 0"),
        ({"top_k": 0}, "top_k is at least 1; got 0"),
        ({"temperature": -1.0}, "temperature is 0, .* got -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(DllmarkError, match=message):
        Llada2(**options)
