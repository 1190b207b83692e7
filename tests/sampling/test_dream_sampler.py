"""Dream's sampler equals the official algorithm, written here row by row; its options work."""

import pytest
import torch
from tiny import PROMPTS, forbid, order_of, padded, scripted_model, steps_of, tiny_model, written

from dllmark.marking.watermark import Watermark
from dllmark.sampling.choice import highest
from dllmark.sampling.confidence import confidence, draw, draw_noise, keep_likeliest, warp_logits
from dllmark.sampling.settings import Dream

ORDERS = ["origin", "maskgit_plus", "topk_margin", "entropy"]


@pytest.fixture(scope="module")
def model(small_tokenizer):
    return tiny_model(small_tokenizer, shifted=True, qkv_bias=True)


def naive_dream(model, x, attended, start, sampler):
    """The official sampler at temperature 0."""
    masked = torch.ones_like(x, dtype=torch.bool)
    masked[:, :start] = False
    times = torch.linspace(1, sampler.eps, sampler.steps + 1)
    for step in range(sampler.steps):
        logits = forbid(model, model.transformer(x, attended))
        if sampler.top_k:
            ranks = logits.argsort(-1, descending=True).argsort(-1)
            logits = torch.where(ranks < sampler.top_k, logits, -torch.inf)
        probabilities = logits.softmax(-1)
        masks = masked.sum() / len(x)
        last = step == sampler.steps - 1
        count = int(masks) if last else int(masks * (1 - times[step + 1] / times[step]))
        for b in range(len(x)):
            certainty = torch.full((x.shape[1],), -torch.inf)
            for i in masked[b].nonzero()[:, 0]:
                p = probabilities[b, i]
                certainty[i] = {
                    "maskgit_plus": p.max(),
                    "topk_margin": p.sort().values[-1] - p.sort().values[-2],
                    "entropy": (p * (p + 1e-10).log()).sum(),
                }[sampler.order]
            for i in certainty.topk(count).indices:
                x[b, i] = probabilities[b, i].argmax()
                masked[b, i] = False
    return x


@pytest.mark.parametrize("order", ORDERS[1:])
@pytest.mark.parametrize("steps", [1, 7, 32, 50])
def test_it_writes_what_the_official_sampler_writes(model, order, steps):
    sampler = Dream(steps=steps, order=order, temperature=0)
    expected = naive_dream(model, *padded(model, PROMPTS, 32), sampler)
    assert torch.equal(written(model, sampler), expected)


@pytest.mark.parametrize("top_k", [2, 8])
def test_certainty_is_measured_among_the_tokens_kept_as_officially(model, top_k):
    sampler = Dream(steps=32, order="entropy", temperature=0, top_k=top_k)
    expected = naive_dream(model, *padded(model, PROMPTS, 32), sampler)
    assert torch.equal(written(model, sampler), expected)
    assert not torch.equal(written(model, Dream(32, "entropy", 0, top_k=None)), expected)


def test_it_draws_from_the_50_likeliest_as_diffusion_generate_does_by_default():
    logits = torch.linspace(0, 1, 60)
    assert warp_logits(Dream(), logits).isfinite().nonzero()[:, 0].tolist() == list(range(10, 60))
    assert warp_logits(Dream(top_k=None), logits).isfinite().all()


def test_orders_differ(small_tokenizer):
    likely = [{5: 0.5, 6: 0.4}, {5: 0.45}, {5: 0.49, 6: 0.48}]
    model = scripted_model(small_tokenizer, likely)
    first = {
        order: order_of(steps_of(model, Dream(3, order, temperature=0), prompts=["w1"], tokens=3))[
            0
        ]
        for order in ORDERS[1:]
    }
    assert first == {"maskgit_plus": 0, "topk_margin": 1, "entropy": 2}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("order", ORDERS)
def test_a_watermark_of_no_strength_changes_nothing(model, small_key, order, temperature):
    sampler = Dream(16, order, temperature, top_p=0.9, top_k=20, alg_temp=0.1)
    unmarked = written(model, sampler)
    none = Watermark(small_key, delta=0.0, tokenizer=model.tokenizer)
    strong = Watermark(small_key, delta=5.0, tokenizer=model.tokenizer)
    assert torch.equal(written(model, sampler, none), unmarked)
    assert not torch.equal(written(model, sampler, strong), unmarked)


@pytest.mark.parametrize("order", ORDERS)
def test_the_watermark_does_not_decide_which_tokens_come_first(model, small_key, order):
    sampler = Dream(steps=4, order=order, temperature=0.8)
    strong = Watermark(small_key, "predictive-bidirectional", 50.0, tokenizer=model.tokenizer)
    unmarked, marked = steps_of(model, sampler)[0], steps_of(model, sampler, strong)[0]
    assert torch.equal(unmarked.revealed, marked.revealed)
    assert not torch.equal(unmarked.tokens, marked.tokens)


def test_origin_flips_each_mask_by_itself(model):
    first = steps_of(model, Dream(4, "origin"), prompts=["w1 w2"] * 16, tokens=64, batch_size=16)[0]
    counts = first.revealed[:, first.start :].sum(1)
    assert counts.float().mean() == pytest.approx(64 / 4, abs=2)
    assert len(set(counts.tolist())) > 3
    places = first.revealed[:, first.start :].sum(0).float()
    assert places[:32].mean() == pytest.approx(places[32:].mean(), abs=1.5)


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_step_reveals_all_that_is_left(model, order):
    last = steps_of(model, Dream(steps=3, order=order, temperature=0))[-1]
    assert last.number == last.total == 3
    assert last.revealed.all()


def test_the_likeliest_tokens_are_kept_as_dream_keeps_them():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    kept = {
        (0.39, None): [1],
        (0.41, None): [1, 3],
        (0.71, None): [1, 2, 3],
        (1.0, None): [0, 1, 2, 3],
        (1.0, 2): [1, 3],
        (1.0, 9): [0, 1, 2, 3],
        (0.71, 1): [1],
    }
    for (top_p, top_k), expected in kept.items():
        result = keep_likeliest(logits, top_p, top_k)[0]
        assert result.isfinite().nonzero()[:, 0].tolist() == expected
        assert torch.equal(result[expected], logits[0, expected])


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"top_p": 1e-6}])
def test_keeping_one_token_is_temperature_0(model, limit):
    one_step = {"steps": 1, "order": "maskgit_plus"}
    sure, drawn = (Dream(**one_step, temperature=t) for t in (0, 1.0))
    limited = Dream(**one_step, temperature=1.0, **limit)
    assert torch.equal(written(model, limited), written(model, sure))
    assert not torch.equal(written(model, drawn), written(model, sure))


def test_tokens_are_drawn_from_the_warped_distribution():
    sampler = Dream(temperature=0.5, top_k=3)
    logits = torch.tensor([0.0, 1.0, 0.5, -2.0]).expand(1, 40_000, 4)
    noise = draw_noise(sampler, logits, torch.Generator().manual_seed(0))
    drawn = draw(warp_logits(sampler, logits), noise)[0]
    expected = torch.tensor([0.0, 2.0, 1.0, -torch.inf]).softmax(-1)
    torch.testing.assert_close(drawn.bincount(minlength=4) / 40_000, expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("order", ORDERS[1:])
def test_certainty_is_measured_after_temperature_and_limits(order):
    sampler = Dream(order=order, temperature=0.5, top_k=2)
    logits = torch.tensor([[[0.0, 1.0, 0.5, -2.0]]])
    best, second = torch.tensor([2.0, 1.0]).softmax(-1)
    expected = {
        "maskgit_plus": best,
        "topk_margin": best - second,
        "entropy": best * best.log() + second * second.log(),
    }[order]
    score = confidence(sampler, logits, logits, torch.zeros(1, 1, 4), (), torch.Generator())
    torch.testing.assert_close(score[0, 0], expected)


def test_no_draw_of_a_place_is_so_unlikely_that_it_stays_masked():
    score = torch.tensor([[0.5, -torch.inf, 0.1, -torch.inf]])
    masked = torch.tensor([[False, False, True, True]])
    assert sorted(highest(score, masked, torch.tensor([2]), most=3)[0].tolist()) == [-1, 2, 3]


def test_places_are_drawn_by_their_certainty():
    """Without replacement, in proportion to softmax(confidence / alg_temp)."""
    sampler = Dream(order="maskgit_plus", alg_temp=0.5, temperature=0)
    p = torch.tensor([0.9, 0.7, 0.5])
    logits = torch.stack([p, 1 - p], -1).log().expand(40_000, 3, 2)
    random = torch.Generator().manual_seed(0)
    score = confidence(sampler, logits, logits, None, (), random)
    masked = torch.ones(40_000, 3, dtype=torch.bool)
    first = highest(score, masked, torch.ones(40_000, dtype=torch.int64), most=1)[:, 0]
    torch.testing.assert_close(first.bincount() / 40_000, (p / 0.5).softmax(-1), atol=0.01, rtol=0)


def test_suppress_end_never_writes_an_end(small_tokenizer):
    model = scripted_model(small_tokenizer, [{1: 0.9}] * 32)
    assert (written(model, Dream(temperature=0), prompts=["w1"]) == 1).any()
    assert not (written(model, Dream(suppress_end=True, temperature=0), prompts=["w1"]) == 1).any()
