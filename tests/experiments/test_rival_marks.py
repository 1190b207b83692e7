"""Each other scheme writes what a slow loop over its paper's formulas writes."""

import math
import operator
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import siphash24
import torch
from tiny import MASK, batch_generator, steps_of

from dllmark.errors import InputError
from dllmark.experiments.rivals import joint
from dllmark.experiments.rivals.coins import side_lists
from dllmark.experiments.rivals.marks import Mark, TwoSides
from dllmark.experiments.rivals.schemes import SCHEMES, find_scheme
from dllmark.marking.state import State
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.sampling.confidence import draw, draw_noise, warp_logits
from dllmark.sampling.settings import Dream, Llada
from dllmark.sampling.texts import generate

PROMPT = "w4 w5 w6"
TOKENS, BLOCK = 16, 8
SPECIAL = 3
"""The first ids of the small tokenizer are no words."""


@cache
def hashed(key, label, high, low):
    """SipHash of two numbers under a sub-key of a scheme, by another implementation."""
    secret = key.derive(f"dllmark reproduce rivals: {label}").secret.reveal()
    message = (high << 32 | low).to_bytes(8, "little")
    return int.from_bytes(siphash24.siphash24(message, key=secret).digest(), "little")


def coin(key, label, left, right):
    return hashed(key, label, left, right) < key.gamma * 2**64


@cache
def own_coin(key, left, right):
    """A pair's colour in our green list, which KGW and Gloaguen et al. share with us."""
    message = (left << 32 | right).to_bytes(8, "little")
    digest = siphash24.siphash24(message, key=key.secret.reveal()).digest()
    return int.from_bytes(digest, "little") < key.gamma * 2**64


class Naive:
    """Writes one text as LLaDA's sampler does, one list at a time; it marks nothing."""

    def __init__(self, model, key, temperature, delta):
        self.model, self.key, self.delta = model, key, delta
        self.temperature = temperature
        self.words = range(SPECIAL, model.tokenizer.vocab_size)

    def bias(self, x, logits, at):
        return [0.0] * self.model.tokenizer.vocab_size

    def uniform(self, at, token, drawn):
        return drawn

    def order(self, x, places, candidates, confidence):
        return sorted(places, key=lambda at: -confidence[at])

    def logits(self, x):
        with torch.inference_mode():
            rows = self.model.transformer(torch.tensor([x]), None, None)[0].float()
        rows = rows[:, : self.model.tokenizer.vocab_size].tolist()
        for row in rows:
            row[MASK] = -math.inf
        return rows

    def pick(self, row, at):
        """The token drawn from logits at a position."""
        if self.temperature == 0:
            return max(range(len(row)), key=row.__getitem__)
        noisy = []
        for token, logit in enumerate(row):
            u = self.uniform(at - self.start, token, float(self.drawn[at - self.block][token]))
            noisy.append(logit / self.temperature - math.log(-math.log(u)))
        return max(range(len(row)), key=noisy.__getitem__)

    def candidates(self, x, places):
        rows = self.logits(x)
        return {at: self.pick(rows[at], at) for at in places}

    def passes(self, chosen):
        return [chosen]

    def marked(self, x, rows, at):
        """The token drawn at a place with the bias."""
        bias = self.bias(x, rows, at)
        return self.pick([logit + more for logit, more in zip(rows[at], bias, strict=True)], at)

    def write(self, per_step, seed):
        prompt = self.model.tokenizer.encode(PROMPT).tolist()
        self.start, random = len(prompt), batch_generator(seed)
        x = prompt + [MASK] * TOKENS
        for first in range(self.start, len(x), BLOCK):
            self.block = first
            for _ in range(BLOCK // per_step):
                rows = self.logits(x)
                if self.temperature:
                    shape = (1, BLOCK, self.model.config.vocab_size)
                    self.drawn = torch.rand(shape, generator=random, dtype=torch.float64)[0]
                places = [at for at in range(first, first + BLOCK) if x[at] == MASK]
                candidates = {at: self.pick(rows[at], at) for at in places}
                confidence = {
                    at: torch.tensor(rows[at]).log_softmax(0)[candidates[at]].item()
                    for at in places
                }
                chosen = self.order(x, places, candidates, confidence)[:per_step]
                for at_once in self.passes(chosen):
                    written = {at: self.marked(x, rows, at) for at in at_once}
                    for at, token in written.items():
                        x[at] = token
        return x[self.start :]

    def over_words(self, gains, most):
        """The bias of every token: special ones get the mean."""
        vocabulary = range(self.model.tokenizer.vocab_size)
        return [gains(token) if token in self.words else self.key.gamma * most
                for token in vocabulary]  # fmt: skip


class NaiveUnigram(Naive):
    def bias(self, x, logits, at):
        def gain(token):
            return self.delta * coin(self.key, "unigram", 0, token)

        return self.over_words(gain, self.delta)


class NaiveLeftToRight(Naive):
    def order(self, x, places, candidates, confidence):
        return sorted(places)

    def bias(self, x, logits, at):
        left = x[at - 1]
        if left not in self.words:  # nothing stands there, or no word
            return super().bias(x, logits, at)
        return self.over_words(lambda v: self.delta * own_coin(self.key, left, v), self.delta)


class NaiveExpected(Naive):
    def neighbours(self, x, logits, at, temperature, most=None):
        """The likeliest words beside a place, left and right, with their probabilities."""
        sides = []
        for place in (at - 1, at + 1):
            p = {}
            if 0 <= place < len(x) and x[place] != MASK:
                p = {x[place]: 1.0}
            elif 0 <= place < len(x):
                row = torch.tensor(logits[place]) / temperature
                likeliest = sorted(enumerate(row.softmax(0).tolist()), key=lambda one: -one[1])
                p = dict(likeliest[:most])
            sides.append({u: p[u] for u in p if u in self.words})
        return sides


class NaiveGloaguen(NaiveExpected):
    def bias(self, x, logits, at):
        left, right = sides = self.neighbours(x, logits, at, self.temperature or 1.0)

        def gain(v):
            before = sum(p * own_coin(self.key, u, v) for u, p in left.items())
            after = sum(p * own_coin(self.key, v, w) for w, p in right.items())
            return self.delta / 2 * (before + after)

        return self.over_words(gain, self.delta / 2 * sum(map(sum, map(dict.values, sides))))


class NaiveUnbiased(NaiveExpected):
    def after(self, share):
        return min(2 * share, 1)

    fresh = False

    def green(self, x, logits, at, p):
        """How probably each token makes a green pair on the left, and on the right."""
        left, right = self.neighbours(x, logits, at, 1.0, most=8)
        there = {pair for pair in pairwise(x) if MASK not in pair}
        sides = []
        for place, beside, pair in ((at - 1, left, lambda u, v: (u, v)),
                                    (at + 1, right, lambda u, v: (v, u))):  # fmt: skip
            side = [0.5] * len(p)
            for v in self.words:
                again = self.fresh and 0 <= place < len(x) and pair(x[place], v) in there
                if p[v] >= 1e-5 and not again:
                    known = sum(q * own_coin(self.key, *pair(u, v)) for u, q in beside.items())
                    side[v] = known + 0.5 * (1 - sum(beside.values()))
            sides.append(side)
        return sides

    def bias(self, x, logits, at):
        p = (torch.tensor(logits[at]) / self.temperature).softmax(0).tolist()
        gains = [0.0] * len(p)
        for green in self.green(x, logits, at, p):
            share = min(max(sum(map(operator.mul, p, green)), 1e-6), 1 - 1e-6)
            now = self.after(share)
            for v in range(len(p)):
                factor = now / share * green[v] + (1 - now) / (1 - share) * (1 - green[v])
                p[v] *= factor
                gains[v] += self.temperature * math.log(max(factor, 1e-37))
        return gains


class NaiveSta1(NaiveUnbiased):
    def after(self, share):
        return share + (1 - share) * share


class NaiveUnbiasedFresh(NaiveUnbiased):
    fresh = True


class NaiveFresh(NaiveUnbiasedFresh):
    def bias(self, x, logits, at):
        p = (torch.tensor(logits[at]) / (self.temperature or 1.0)).softmax(0).tolist()
        left, right = self.green(x, logits, at, p)
        return [self.delta * (before + after) for before, after in zip(left, right, strict=True)]


class NaiveGuidedFresh(NaiveExpected):
    """The order is that of the model's own confidence in the biased tokens; two passes a step."""

    def bias(self, x, logits, at):
        left, right = sides = self.neighbours(x, logits, at, 1.0, most=8)
        there = {pair for pair in pairwise(x) if MASK not in pair}
        after = x[at + 1] if at + 1 < len(x) else None
        inside = (at > 0) + (at + 1 < len(x))

        def gain(v):
            if (x[at - 1], v) in there or (v, after) in there:
                return 0.5 * self.delta * inside
            before = sum(p * own_coin(self.key, u, v) for u, p in left.items())
            return self.delta * (
                before + sum(p * own_coin(self.key, v, w) for w, p in right.items())
            )

        return self.over_words(gain, self.delta * sum(map(sum, map(dict.values, sides))))

    def order(self, x, places, candidates, confidence):
        rows = self.logits(x)
        sure = {
            at: torch.tensor(rows[at]).log_softmax(0)[self.marked(x, rows, at)].item()
            for at in places
        }
        return sorted(places, key=lambda at: -sure[at])

    def passes(self, chosen):
        return [[at for at in chosen if at % 2 == parity] for parity in (0, 1)]


class NaiveLeftRight(Naive):
    def bias(self, x, logits, at):
        left = x[at - 1]
        right = x[at + 1] if at + 1 < len(x) else MASK
        known = [left in self.words, right in self.words]

        def gain(v):
            on_left = known[0] and coin(self.key, "lr-dwm left", left, v)
            on_right = known[1] and coin(self.key, "lr-dwm right", v, right)
            return self.delta * (on_left + on_right)

        return self.over_words(gain, self.delta * sum(known))


class NaiveDgMark(Naive):
    tried = 1

    def matches(self, at, token):
        return coin(self.key, "dgmark", 0, token) == ((at - self.start) % 2 == 1)

    def order(self, x, places, candidates, confidence):
        right = [at for at in places if self.matches(at, candidates[at])]
        ordered = sorted(places, key=lambda at: (at not in right, -confidence[at]))
        best = None
        for at in ordered[: self.tried] if self.tried > 1 else []:
            if at not in right:
                continue
            after = [*x]
            after[at] = candidates[at]
            others = [place for place in places if place != at]
            then = self.candidates(after, others)
            score = sum(self.matches(place, token) for place, token in then.items())
            if best is None or score > best[0]:
                best = (score, at)
        if best:
            ordered.remove(best[1])
            ordered.insert(0, best[1])
        return ordered


class NaiveLookAhead(NaiveDgMark):
    tried = 3


class NaiveGumbel(Naive):
    def uniform(self, at, token, drawn):
        return ((hashed(self.key, "gumbel", at, token) >> 11) + 0.5) / 2**53


class NaiveJoint(NaiveGuidedFresh):
    """Enumerates every pair of place and token that the sampler could write next."""

    def write(self, per_step, seed):
        prompt = self.model.tokenizer.encode(PROMPT).tolist()
        self.start, random = len(prompt), batch_generator(seed)
        x = prompt + [MASK] * TOKENS
        for first in range(self.start, len(x), BLOCK):
            self.block = first
            for _ in range(BLOCK // per_step):
                self.step(x, range(first, first + BLOCK), per_step, random)
        return x[self.start :]

    def step(self, x, block, per_step, random):
        rows = self.logits(x)
        if self.temperature:
            shape = (1, BLOCK, self.model.config.vocab_size)
            self.drawn = torch.rand(shape, generator=random, dtype=torch.float64)[0]
        own = {at: self.pick(rows[at], at) for at in block}
        limit = math.inf
        for _ in range(per_step):
            places = [at for at in block if x[at] == MASK]
            first = max(places, key=lambda at: self.sure(rows, at, own[at]))
            at, token = self.choice(x, rows, block, (first, own[first]), limit, random)
            limit = self.sure(rows, first, own[first])
            x[at] = token

    def sure(self, rows, at, token):
        return torch.tensor(rows[at]).log_softmax(0)[token].item()

    def choice(self, x, rows, block, own, limit, random):
        gains = {at: [gain - self.mean(x, at) for gain in self.bias(x, rows, at)]
                 for at in block if x[at] == MASK}  # fmt: skip
        if not self.temperature:
            pairs = [(at, token) for at in gains for token in self.likely(rows[at])]
            return max(pairs, key=lambda p: self.sure(rows, *p) + gains[p[0]][p[1]])
        u = torch.rand((1, 1 + BLOCK * 32), generator=random, dtype=torch.float64)[0].tolist()
        if own[1] not in self.likely(rows[own[0]]):
            return own
        before = self.chances(rows, list(gains), limit)
        after = {pair: p * math.exp(gains[pair[0]][pair[1]]) for pair, p in before.items()}
        before, after = ({pair: p / sum(one.values()) for pair, p in one.items()}
                         for one in (before, after))  # fmt: skip
        if u[0] * before[own] <= after[own]:
            return own
        more = {}
        for pair in before:
            number = (pair[0] - block[0]) * 32 + self.likely(rows[pair[0]]).index(pair[1])
            if after[pair] > before[pair]:
                noise = math.log(-math.log(u[1 + number]))
                more[pair] = math.log(after[pair] - before[pair]) - noise
        return max(more, key=more.__getitem__)

    def mean(self, x, at):
        return self.delta * self.key.gamma * ((at > 0) + (at + 1 < len(x)))

    def likely(self, row):
        return sorted(range(len(row)), key=lambda token: -row[token])[:32]

    def chances(self, rows, places, limit):
        """The chance of each place and likely token to be what the sampler writes next."""
        q = {at: (torch.tensor(rows[at]) / self.temperature).softmax(0).tolist() for at in places}
        sure = {at: torch.tensor(rows[at]).log_softmax(0).tolist() for at in places}
        found = {}
        for at in places:
            for token in self.likely(rows[at]):
                others = (
                    sum(p for p, c in zip(q[one], sure[one], strict=True) if c <= sure[at][token])
                    for one in places
                    if one != at
                )
                if sure[at][token] <= limit:
                    found[at, token] = q[at][token] * math.prod(others)
        return found


NAIVE = {
    "unigram": NaiveUnigram,
    "kgw-left-to-right": NaiveLeftToRight,
    "gloaguen": NaiveGloaguen,
    "lr-dwm": NaiveLeftRight,
    "dgmark": NaiveDgMark,
    "dgmark-look-ahead": NaiveLookAhead,
    "sta-1": NaiveSta1,
    "unbiased": NaiveUnbiased,
    "expected-fresh": NaiveFresh,
    "guided-fresh": NaiveGuidedFresh,
    "unbiased-fresh": NaiveUnbiasedFresh,
    "gumbel": NaiveGumbel,
    "joint": NaiveJoint,
}


@pytest.mark.parametrize(
    ("name", "temperature", "per_step"),
    [
        (name, temperature, per_step)
        for name in NAIVE
        for temperature, per_step in ((0.0, 1), (0.8, 1), (0.8, 2))
        if temperature or not SCHEMES[name].noise
    ],
)
def test_a_scheme_writes_what_its_formulas_say(endless, name, temperature, per_step):
    model = endless
    scheme = SCHEMES[name]
    tokenizer = model.tokenizer
    key = WatermarkKey(Secret(b"a key of 16 byte"), scheme.gamma, tokenizer.id)
    mark = scheme.mark(key, tokenizer, scheme.delta, temperature)
    sampler = Llada(TOKENS // per_step, BLOCK, temperature, order=scheme.order or "low_confidence")
    naive = NAIVE[name](model, key, temperature, scheme.delta)
    plain = Naive(model, key, temperature, 0.0)
    seed = 4
    [*_, last] = steps_of(model, sampler, mark, [PROMPT], TOKENS, seed=seed)
    expected = naive.write(per_step, seed)
    assert last.tokens[0, last.start :].tolist() == expected
    assert expected != plain.write(per_step, seed)  # else the mark would not have been tested


def test_an_expectation_is_over_all_likely_neighbours(endless, small_key):
    vocab_size = endless.tokenizer.vocab_size
    logits = torch.randn(1, 3, vocab_size, generator=torch.Generator().manual_seed(0))
    logits[..., MASK] = -torch.inf
    mark = SCHEMES["gloaguen"].mark(small_key, endless.tokenizer, 4.0, 0.5)
    tokens, masked = torch.full((1, 3), MASK), torch.zeros(1, 3, dtype=torch.bool)
    biased = mark.bias(tokens, masked, logits, torch.tensor([[1]]))[0, 0]
    naive = NaiveGloaguen(endless, small_key, 0.5, 4.0).bias([MASK] * 3, logits[0].tolist(), 1)
    words = slice(SPECIAL, None)
    found = (biased - logits[0, 1])[words]
    torch.testing.assert_close(found, torch.tensor(naive)[words], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["sta-1", "unbiased", "unbiased-fresh"])
def test_over_all_keys_an_unbiased_scheme_leaves_every_token_as_likely(endless, name):
    tokenizer = endless.tokenizer
    logits = torch.randn(1, 3, tokenizer.vocab_size, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[7, MASK, MASK]])  # a known neighbour and an expected one
    state = State(tokens, tokens != MASK, 2 * logits, torch.tensor([[1]]))
    found = []
    for number in range(1000):
        key = WatermarkKey(Secret(number.to_bytes(16, "big")), 0.5, tokenizer.id)
        biased = SCHEMES[name].mark(key, tokenizer, 0.0, 0.8).bias(state)
        found.append((biased[0, 0] / 0.8).softmax(0))
    mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / math.sqrt(len(found))
    p = (state.logits[0, 1] / 0.8).softmax(0)
    assert (error < 0.05 * p).all() and (error.max() > 0.001)
    assert ((mean - p).abs() < 4 * error).all()


@pytest.mark.parametrize("name", ["sta-1", "unbiased", "unbiased-fresh"])
def test_what_is_certain_stays_so_whatever_its_colour(endless, name):
    logits = torch.full((1, 2, endless.tokenizer.vocab_size), -100.0)
    logits[..., 9] = 100.0
    tokens = torch.tensor([[7, MASK]])
    state = State(tokens, tokens != MASK, logits, torch.tensor([[1]]))
    for number in range(8):
        key = WatermarkKey(Secret(bytes([number] * 16)), 0.5, endless.tokenizer.id)
        biased = SCHEMES[name].mark(key, endless.tokenizer, 0.0, 0.8).bias(state)
        assert torch.isfinite(biased).all() and biased[0, 0].argmax() == 9


@pytest.mark.parametrize("cache", ["none", "block"])
def test_a_joint_mark_of_no_strength_changes_nothing(endless, small_key, cache):
    sampler = Llada(TOKENS, BLOCK, 0.8, cache=cache)
    mark = SCHEMES["joint"].mark(small_key, endless.tokenizer, 0.0, 0.8)
    marked, plain = (
        generate(endless, [PROMPT, "w9"], mark, sampler, tokens=TOKENS, chat=False)
        for mark in (mark, None)
    )
    assert [text.ids for text in marked] == [text.ids for text in plain]


def test_a_joint_mark_says_which_order_it_is_for(endless, small_key):
    mark = SCHEMES["joint"].mark(small_key, endless.tokenizer, 3.0, 0.8)
    with pytest.raises(InputError, match="low_confidence order alone"):
        generate(endless, [PROMPT], mark, Dream(8, "entropy"), tokens=8, chat=False)


def test_the_chances_are_those_of_the_sampler():
    sampler = Llada(8, temperature=0.8)
    logits = 1.5 * torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0))
    masked = torch.tensor([[True, True, False, True]])
    tokens = logits.topk(6).indices
    chances = joint.log_chances(sampler, logits, tokens, masked).exp()
    expected = torch.zeros(4, 6).scatter(1, tokens[0], chances[0])
    many = logits.expand(200_000, -1, -1)
    drawn = draw(
        warp_logits(sampler, many),
        draw_noise(sampler, many, torch.Generator().manual_seed(1)),
    )
    sure = many.log_softmax(-1).gather(2, drawn[..., None])[..., 0]
    first = sure.masked_fill(~masked, -torch.inf).argmax(1)
    number = first * 6 + drawn.gather(1, first[:, None])[:, 0]
    found = torch.bincount(number, minlength=24).view(4, 6) / len(many)
    assert torch.allclose(found, expected, atol=0.003)


def test_reweighed_draws_have_the_new_chances_and_stay_where_they_can():
    random = torch.Generator().manual_seed(0)
    chances, gain = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.0, 1.0, -1.0])
    count = 200_000
    own = torch.multinomial(chances.exp(), count, replacement=True, generator=random)
    drawn = joint.reweighed(chances.expand(count, -1), gain.expand(count, -1), own, random)
    after = (chances + gain).softmax(0)
    assert torch.allclose(torch.bincount(drawn) / count, after, atol=0.005)
    moved = (drawn != own).float().mean().item()
    assert abs(moved - (after - chances.exp()).clamp(min=0).sum().item()) < 0.005


def test_every_other_scheme_has_a_naive_transcription():
    assert set(NAIVE) == {name for name, scheme in SCHEMES.items() if not scheme.ours}


@pytest.mark.parametrize("name", ["dgmark-look-ahead", "lr-dwm", "gumbel"])
def test_a_text_does_not_depend_on_its_company(endless, name, small_key):
    model = endless
    mark = SCHEMES[name].mark(small_key, model.tokenizer, 2.0, 0.8)
    sampler = Llada(TOKENS, BLOCK, 0.0 if name != "gumbel" else 0.8)
    prompts = [PROMPT, "w7 w8 w9"]
    together = steps_of(model, sampler, mark, prompts, TOKENS)[-1].tokens
    for row, prompt in enumerate(prompts):
        [alone] = steps_of(model, sampler, mark, [prompt], TOKENS)[-1].tokens
        assert torch.equal(together[row], alone)


@pytest.mark.parametrize("name", [name for name in NAIVE if not SCHEMES[name].order])
@pytest.mark.parametrize("sampler", [Dream(100, "entropy"), Llada(50, 20, order="random")])
def test_a_scheme_finds_its_own_texts_and_no_other_keys(endless, name, sampler):
    scheme, tokenizer = SCHEMES[name], endless.tokenizer
    if scheme.orders:
        sampler = Llada(100, 20)
    own, other = (WatermarkKey(Secret(secret), scheme.gamma, tokenizer.id)
                  for secret in (b"a key of 16 byte", b"another 16 bytes"))  # fmt: skip
    mark = scheme.mark(own, tokenizer, 3 * scheme.delta, sampler.temperature)
    prompts = ["w4 w5", "w9 w8", "w20 w3", "w7 w30"]
    texts = [np.array(text.ids) for text in
             generate(endless, prompts, mark, sampler, tokens=100, chat=False)]  # fmt: skip
    for score in scheme.scores.values():
        p_own, p_other = (
            np.median([found.p_value for found in score(key, tokenizer)(texts)])
            for key in (own, other)
        )
        assert p_own < 0.05 < p_other


def test_the_lists_of_both_sides_are_the_same_on_tensors(small_key):
    lists, here = TwoSides(*side_lists(small_key, 35)), torch.tensor([4, 20])
    for row, token in enumerate(here.tolist()):
        after = [coin(small_key, "lr-dwm left", token, v) for v in range(35)]
        before = [coin(small_key, "lr-dwm right", v, token) for v in range(35)]
        assert lists.rows(here)[row].tolist() == lists.rows(here.numpy())[row].tolist() == after
        assert lists.columns(here)[row].tolist() == before
        assert lists.columns(here.numpy())[row].tolist() == before


@pytest.mark.parametrize("name", [name for name in NAIVE if SCHEMES[name].noise])
def test_what_needs_noise_says_so_where_there_is_none(small_key, small_tokenizer, name):
    with pytest.raises(InputError, match=f"{name} needs .* at a temperature above 0"):
        SCHEMES[name].mark(small_key, small_tokenizer, 0.0, 0.0)


class Looking(Mark):
    """Looks one step ahead from every place, and changes nothing."""

    def prefer(self, choice):
        for place in range(choice.score.shape[1]):
            at = torch.full((len(choice.score),), place)
            choice.look(at, choice.candidates[:, place])
        return choice.score


@pytest.mark.parametrize("cache", ["none", "block", "prefix"])
def test_looking_ahead_leaves_nothing_behind(endless, small_key, cache):
    sampler = Llada(16, 8, temperature=0.8, cache=cache)
    mark = Looking(small_key, endless.tokenizer)
    marked, plain = (
        generate(endless, [PROMPT, "w9"], mark, sampler, tokens=TOKENS, chat=False)
        for mark in (mark, None)
    )
    assert [text.ids for text in marked] == [text.ids for text in plain]


def test_an_unknown_scheme_is_told_the_known_ones():
    with pytest.raises(InputError, match="no scheme 'nosuch': choose one of kgw, predictive"):
        find_scheme("nosuch")
