"""Texts from prompts: marked and detected, reproducible, cut at their end; errors say why."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import END, MASK, PAD, PROMPTS, order_of, scripted_model, steps_of, tiny_model, written

from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError, InputError, MismatchError
from dllmark.marking.strategies import BIASES, STRATEGIES
from dllmark.marking.watermark import Watermark
from dllmark.models.families import EMBEDDED
from dllmark.sampling import denoiser
from dllmark.sampling.confidence import reachable_tokens
from dllmark.sampling.schedule import blocks, steps_in_blocks
from dllmark.sampling.settings import (
    MIN_TEMPERATURE,
    TEMPERATURE,
    Dream,
    Llada,
    Parallel,
    check_length,
)
from dllmark.sampling.texts import generate, generate_both

WARM = {"temperature": 0.8, "suppress_end": True}
SAMPLERS = {
    "llada": Llada(steps=16, block_length=16, **WARM),
    "random": Llada(steps=32, order="random", **WARM),
    "remask": Llada(steps=32, remask=0.2, **WARM),
    "guided": Llada(steps=16, block_length=16, cfg_scale=0.5, **WARM),
    "origin": Dream(steps=16, order="origin", **WARM),
    "entropy": Dream(steps=16, order="entropy", alg_temp=0.2, top_p=0.95, **WARM),
    "parallel": Parallel(threshold=0.6, **WARM),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)


@pytest.fixture
def mark(small_key, small_tokenizer):
    return Watermark(small_key, "predictive-bidirectional", 6.0, tokenizer=small_tokenizer)


@every_sampler
def test_a_marked_text_is_detected_and_an_unmarked_one_is_not(model, small_key, mark, sampler):
    detector = Detector(small_key, model.tokenizer, fpr=1e-3)
    for watermark in (mark, None):
        for text in generate(model, PROMPTS, watermark, sampler, tokens=128, chat=False):
            found = detector.detect(text.ids).verdict.value == "watermarked"
            assert found is (watermark is not None)
            assert text.watermark == (watermark and mark.identity.to_dict())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_marks_a_text(model, small_key, strategy):
    watermark = Watermark(small_key, strategy, 8.0, tokenizer=model.tokenizer)
    sampler = Llada(steps=64, apart=True, **WARM)
    [text] = generate(model, PROMPTS[:1], watermark, sampler, tokens=128, chat=False)
    detection = Detector(small_key, model.tokenizer, fpr=1e-3).detect(text.ids)
    assert detection.verdict.value == "watermarked"


def test_only_the_left_neighbour_counts_for_kgw(model, small_key):
    kgw = Watermark(small_key, "kgw", 12.0, tokenizer=model.tokenizer)
    detector = Detector(small_key, model.tokenizer)
    orders = {}
    for order in ("left_to_right", "random"):
        sampler = Llada(steps=128, order=order, **WARM)
        [text] = generate(model, PROMPTS[:1], kgw, sampler, tokens=128, chat=False)
        orders[order] = detector.detect(text.ids).green_fraction, text.known_left
    assert orders["left_to_right"] == (1.0, 1.0)
    green, known = orders["random"]
    assert green == pytest.approx(known + (1 - known) / 2, abs=0.1)
    assert 0.4 < known < 0.65


class Listening(Watermark):
    """Keeps the positions that it is called for, and those of the logits it is given."""

    def bias(self, tokens, revealed, logits, positions, logit_positions, *more):
        call = (positions.tolist(), logit_positions.tolist())
        self.calls = [*getattr(self, "calls", []), call]
        return super().bias(tokens, revealed, logits, positions, logit_positions, *more)


def test_a_watermark_is_called_for_the_chosen_positions_only(small_key, small_tokenizer):
    """It is given the logits of their block and of one position more."""
    listening = Listening(small_key, "predictive-bidirectional", tokenizer=small_tokenizer)
    model = scripted_model(small_tokenizer, [{5: p} for p in (0.3, 0.9, 0.5, 0.8, 0.6, 0.4)])
    generate(model, ["w1"], listening, Llada(4, 3, temperature=0), tokens=6, chat=False)
    assert listening.calls == [
        ([[2, 3]], [[1, 2, 3, 4]]),
        ([[1]], [[1, 2, 3, 4]]),
        ([[4, 5]], [[4, 5, 6]]),
        ([[6]], [[4, 5, 6]]),
    ]


@pytest.mark.parametrize("strategy", BIASES)
@pytest.mark.parametrize(
    "sampler",
    [
        *(Llada(steps=16, temperature=temperature) for temperature in (0.0, 1.5)),
        *(Dream(steps=16, temperature=1.5, top_k=top_k) for top_k in (None, 5)),
    ],
    ids=["at 0", "at 1.5", "dream", "dream with top_k"],
)
def test_leaving_out_what_cannot_be_drawn_changes_no_text(
    model, small_key, monkeypatch, strategy, sampler
):
    watermark = Watermark(small_key, strategy, 2.0, tokenizer=model.tokenizer)
    restricted = generate(model, PROMPTS, watermark, sampler, tokens=32)
    left_out = []

    def all_of_them(*arguments):
        left_out.append(int((~reachable_tokens(*arguments)).sum()))

    monkeypatch.setattr(denoiser, "reachable_tokens", all_of_them)
    assert generate(model, PROMPTS, watermark, sampler, tokens=32) == restricted
    assert sum(left_out) > 0


@every_sampler
def test_the_same_seed_gives_the_same_text_and_another_seed_another(model, sampler):
    texts = [generate(model, PROMPTS, None, sampler, tokens=32, seed=s) for s in (1, 1, 2)]
    assert texts[0] == texts[1]
    assert all(one.ids != other.ids for one, other in zip(texts[1], texts[2], strict=True))


@pytest.mark.parametrize("seeds", [(0, 1), (0, 2**32), (1, 2**40 + 1)])
def test_no_two_batches_share_their_noise(model, seeds):
    sampler = Llada(steps=32, temperature=1.0)
    drawn = [
        text.ids
        for seed in seeds
        for text in generate(model, ["w1", "w1"], None, sampler, tokens=32, seed=seed, batch_size=1)
    ]
    assert len({tuple(ids) for ids in drawn}) == 4


@pytest.mark.parametrize(
    "sampler",
    [
        Llada(16, 16, temperature=0),
        Dream(16, "entropy", temperature=0),
        Dream(16, "maskgit_plus", temperature=0),
        Parallel(0.5, temperature=0),
    ],
)
def test_a_batch_gives_what_one_by_one_gives(model, mark, sampler):
    together = generate(model, PROMPTS, mark, sampler, tokens=32)
    assert together == generate(model, PROMPTS, mark, sampler, tokens=32, batch_size=1)
    assert together == generate(model, PROMPTS, mark, sampler, tokens=32, batch_size=2)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["kgw", "expected-bidirectional", "guided-bidirectional"])
def test_a_pair_is_the_two_texts_that_are_written_one_by_one(
    model, small_key, strategy, temperature
):
    sampler = Llada(steps=8, block_length=16, temperature=temperature)
    mark = Watermark(small_key, strategy, delta=5.0, tokenizer=model.tokenizer)
    steps = []
    pair = generate_both(model, PROMPTS[0], mark, sampler, tokens=32, seed=4, on_step=steps.append)
    alone = [
        generate(model, PROMPTS[:1], one, sampler, tokens=32, seed=4, batch_size=1)[0]
        for one in (mark, None)
    ]
    assert list(pair) == alone
    assert pair[0].text != pair[1].text
    assert [tuple(step.tokens.shape) for step in steps] == [(2, steps[0].start + 32)] * 8


@every_sampler
def test_every_token_is_revealed_in_the_end_and_prompts_never_change(model, mark, sampler):
    steps = steps_of(model, sampler, mark)
    prompt = steps[0].tokens[:, :5]
    assert prompt.tolist()[1] == [PAD, PAD, PAD, *model.tokenizer.encode(PROMPTS[1])]
    for step in steps:
        assert step.start == 5
        assert step.revealed[:, :5].all()
        assert torch.equal(step.tokens[:, :5], prompt)
        assert torch.equal(step.tokens == MASK, ~step.revealed)
    assert steps[-1].revealed.all()
    assert steps[-1].number == len(steps)


def test_tokens_appear_out_of_order(model):
    order = order_of(steps_of(model, Llada(steps=32, temperature=0)))
    assert sorted(order) == list(range(32)) != order
    order = order_of(steps_of(model, Llada(steps=32, order="left_to_right", temperature=0)))
    assert order == list(range(32))


def test_a_step_is_a_copy(model):
    steps = steps_of(model, Llada(steps=32, temperature=0))
    assert [int(step.revealed[0, 5:].sum()) for step in steps] == list(range(1, 33))


def test_a_text_is_cut_at_its_end(small_tokenizer):
    likely = [{5: 0.9}, {PAD: 0.9}, {6: 0.9}, {END: 0.9}, {7: 0.9}, {8: 0.9}]
    model = scripted_model(small_tokenizer, likely)
    [text] = generate(model, ["w1"], None, Llada(6, 6, temperature=0), tokens=6, chat=False)
    assert text.ids == [5, PAD, 6]
    assert text.text == "w2 w3"


def test_known_left_counts_the_tokens_of_the_text_only(small_tokenizer):
    likely = [{5: 0.9}, {6: 0.7}, {7: 0.8}, {8: 0.95}, {END: 0.85}, {9: 0.6}]
    model = scripted_model(small_tokenizer, likely)
    [text] = generate(model, ["w1"], None, Llada(6, 6, temperature=0), tokens=6, chat=False)
    assert text.known_left == 2 / 4  # revealed in the order 3, 0, 4, 2, 1, 5
    [at_once] = generate(model, ["w1"], None, Llada(1, 6, temperature=0), tokens=6, chat=False)
    assert at_once.known_left == 1 / 4


def test_a_text_that_ends_at_once_is_empty(small_tokenizer):
    model = scripted_model(small_tokenizer, [{END: 0.9}] * 4)
    [text] = generate(model, ["w1"], None, Llada(4, 4, temperature=0), tokens=4, chat=False)
    assert (text.text, text.ids, text.known_left) == ("", [], 0.0)


def test_a_generation_is_plain_json(model, mark):
    [text] = generate(model, ["w1"], mark, Llada(8, 8, temperature=0), tokens=8)
    record = json.loads(json.dumps(text.to_dict()))
    assert record == {
        "prompt": "w1", "text": text.text, "ids": text.ids, "known_left": text.known_left,
        "watermark": mark.identity.to_dict(),
    }  # fmt: skip


def test_chat_wraps_the_prompt_in_the_familys_template(tokenizer):
    model = replace(tiny_model(tokenizer), family=EMBEDDED)
    starts = []
    for chat in (True, False):
        [text] = generate(
            model, ["Hello there"], None, Llada(1, 4, temperature=0), tokens=4, chat=chat,
            on_step=lambda step: starts.append(step.tokens[0, : step.start].tolist()),
        )  # fmt: skip
        assert text.prompt == "Hello there"
    asked = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
    assert starts == [tokenizer.encode(text).tolist() for text in (asked, "Hello there")]


def test_no_prompts_give_no_texts(model):
    assert generate(model, []) == []


def test_the_progress_bar_goes_to_stderr_and_counts_the_steps_of_all_batches(model, capsys):
    options = {"tokens": 32, "batch_size": 2}
    generate(model, PROMPTS, None, Llada(steps=4, temperature=0), progress=True, **options)
    out, err = capsys.readouterr()
    assert out == ""
    assert "writing" in err
    assert "100%" in err
    assert "8/8" in err
    generate(model, PROMPTS, None, Parallel(1.0, temperature=0), progress=True, **options)
    assert "64/?" in capsys.readouterr().err
    generate(model, PROMPTS, None, Llada(steps=4, temperature=0), **options)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: Llada(steps=0), "steps is at least 1; got 0"),
        (lambda: Llada(block_length=0), "block_length is at least 1; got 0"),
        (
            lambda: Llada(temperature=-1),
            "temperature is 0, which .* got -1",
        ),
        (lambda: Llada(cfg_scale=float("nan")), "cfg_scale is from 0 to 100; got nan"),
        (lambda: Llada(cfg_scale=1e38), "cfg_scale is from 0 to 100; got 1e"),
        (lambda: Llada(order="up"), "no order 'up': choose one of low_confidence, random, left"),
        (lambda: Llada(remask=1.0), r"remask is a share of the tokens, in \[0, 1\); got 1.0"),
        (lambda: Dream(steps=0), "steps is at least 1; got 0"),
        (lambda: Dream(order="random"), "choose one of origin, maskgit_plus, topk_margin, entropy"),
        (lambda: Dream(temperature=-0.5), "temperature is 0, .* got -0.5"),
        (lambda: Dream(top_p=0.0), r"top_p is a probability, in \(0, 1\]; got 0.0"),
        (lambda: Dream(top_k=0), "top_k is at least 1; got 0"),
        (lambda: Dream(alg_temp=-1), "alg_temp is 0, which takes the likeliest, or from .* got -1"),
        (lambda: Dream(eps=0.0), r"eps is the time the schedule ends at, in \(0, 1\); got 0.0"),
        (lambda: Parallel(threshold=0.0), r"threshold is a probability, in \(0, 1\]; got 0.0"),
        (lambda: Parallel(block_length=0), "block_length is at least 1; got 0"),
        (
            lambda: Parallel(temperature=-1),
            "temperature is 0, which .* got -1",
        ),
    ],
)
def test_wrong_settings_are_refused_with_a_reason(settings, message):
    with pytest.raises(DllmarkError, match=message):
        settings()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens is how many to write, at least 1; got 0"),
        (
            {"tokens": 100, "sampler": Llada(3)},
            "100 tokens in blocks of 32 take at least 4 steps, not 3",
        ),
        ({"batch_size": 0}, "batch_size is at least 1 and seed at least 0; got 0 and 0"),
        ({"seed": -1}, "batch_size is at least 1 and seed at least 0; got 8 and -1"),
        ({"prompts": ["w1", " "]}, "prompt 2 is empty: give at least one word"),
        ({"prompts": "w1 w2"}, r"prompts is a list of texts: put a single one in \[ \]"),
        (
            {"prompts": ["w1", "w1 " * 33], "chat": False},
            "prompt 2 has 33 tokens and 128 are to be written, but tiny takes 160 in all",
        ),
    ],
)
def test_what_cannot_be_generated_is_refused_with_a_reason(model, options, message):
    options = {"prompts": ["w1"], **options}
    with pytest.raises(DllmarkError, match=message):
        generate(model, **options)


def test_the_longest_text_that_fits_is_written(model):
    [text] = generate(
        model, ["w1 " * 32], None, Llada(4, suppress_end=True, temperature=0), chat=False
    )
    assert len(text.ids) == 128


def test_a_watermark_of_another_tokenizer_is_refused(model, key, tokenizer):
    watermark = Watermark(key, tokenizer=tokenizer)
    with pytest.raises(MismatchError, match="is for the tokenizer embedded, but tiny has"):
        generate(model, ["w1"], watermark)
    with pytest.raises(MismatchError, match="is for the tokenizer embedded, but tiny has"):
        generate_both(model, "w1", watermark)


@pytest.mark.parametrize("make", [Llada, Dream, Parallel])
@pytest.mark.parametrize("temperature", [1e-38, 1e-5, 101.0, 1e39, float("inf"), float("nan")])
def test_a_temperature_that_numbers_cannot_hold_is_refused(make, temperature):
    with pytest.raises(InputError, match=r"temperature is 0, .* or from 0.0001 to 100; got"):
        make(temperature=temperature)
    if make is Dream:
        with pytest.raises(InputError, match="alg_temp"):
            make(alg_temp=temperature)


@pytest.mark.parametrize("make", [Llada, partial(Dream, 1), Parallel])
def test_the_lowest_temperature_takes_the_likeliest_tokens(model, make):
    likeliest = written(model, make(temperature=0), tokens=16)
    assert torch.equal(written(model, make(temperature=MIN_TEMPERATURE), tokens=16), likeliest)


def test_every_sampler_has_the_same_defaults():
    assert Llada().temperature == Dream().temperature == Parallel().temperature == TEMPERATURE
    assert Llada().steps == Dream().steps
    assert Llada().block_length == Parallel().block_length


def test_settings_are_read_without_torch():
    code = "import sys, dllmark.sampling.settings; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("tokens", "steps"), [(1, 1), (7, 3), (20, 20), (21, 3), (33, 40), (40, 9)]
)
@pytest.mark.parametrize("remask", [0.0, 0.3])
def test_any_number_of_tokens_is_written_in_any_number_of_steps(model, tokens, steps, remask):
    sampler = Llada(steps, block_length=16, remask=remask)
    made = steps_of(model, sampler, tokens=tokens)
    assert [step.number for step in made] == list(range(1, steps + 1))
    assert made[-1].tokens.shape[1] == made[-1].start + tokens
    assert made[-1].revealed.all()


@given(tokens=st.integers(1, 300), block=st.integers(1, 64), data=st.data())
def test_steps_are_shared_out_by_the_length_of_a_block(tokens, block, data):
    least = -(-tokens // block)
    sampler = Llada(data.draw(st.integers(least, 2 * tokens + least)), block)
    check_length(sampler, tokens)
    stretches = blocks(sampler, 0, tokens)
    assert [at for stretch in stretches for at in stretch] == list(range(tokens))
    *full, last = shared = steps_in_blocks(sampler, stretches)
    assert sum(shared) == sampler.steps
    assert min(shared) >= 1
    if full:
        assert last <= min(full) <= max(full) <= min(full) + 1 or tokens % block == 0
    if tokens % block == 0 and sampler.steps % len(shared) == 0:
        assert len(set(shared)) == 1  # as LLaDA's own sampler
    if sampler.steps == tokens:
        assert shared == [len(stretch) for stretch in stretches]


@pytest.mark.parametrize("tokens", [1, 2, 33, 96, 100, 150])
@pytest.mark.parametrize("sampler", [Llada(**WARM), Dream(**WARM), Llada(block_length=3, **WARM)])
def test_any_number_of_tokens_is_written_two_a_step(model, sampler, tokens):
    steps = steps_of(model, sampler, prompts=["w1"], tokens=tokens)
    assert len(order_of(steps)) == tokens
    blocks = -(-tokens // sampler.block_length) if isinstance(sampler, Llada) else 1
    assert steps[-1].total == len(steps) == max(tokens // 2, blocks)


def test_steps_that_do_not_divide_the_tokens_are_spread(model):
    sampler = Llada(steps=7, temperature=0, suppress_end=True)
    steps = steps_of(model, sampler, prompts=["w1"], tokens=50)
    known = [int(step.revealed[0, step.start :].sum()) for step in steps]
    assert known == [7, 14, 20, 26, 32, 41, 50]  # 32 tokens in 5 steps, then 18 in 2
