"""Each other scheme as a slow loop over its paper's formulas: one text, one list at a time."""

import math
import operator
from functools import cache
from itertools import pairwise

import siphash24
import torch
from tiny import MASK, batch_generator

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
                self.step(x, range(first, first + BLOCK), per_step, random)
        return x[self.start :]

    def draw_noise(self, random):
        if self.temperature:
            shape = (1, BLOCK, self.model.config.vocab_size)
            self.drawn = torch.rand(shape, generator=random, dtype=torch.float64)[0]

    def sure(self, rows, at, token):
        return torch.tensor(rows[at]).log_softmax(0)[token].item()

    def step(self, x, block, per_step, random):
        rows = self.logits(x)
        self.draw_noise(random)
        places = [at for at in block if x[at] == MASK]
        candidates = {at: self.pick(rows[at], at) for at in places}
        confidence = {at: self.sure(rows, at, candidates[at]) for at in places}
        chosen = self.order(x, places, candidates, confidence)[:per_step]
        for at_once in self.passes(chosen):
            written = {at: self.marked(x, rows, at) for at in at_once}
            for at, token in written.items():
                x[at] = token

    def over_words(self, gains, most):
        """The bias of every token: special ones get the mean."""
        vocabulary = range(self.model.tokenizer.vocab_size)
        return [gains(token) if token in self.words else self.key.gamma * most
                for token in vocabulary]  # fmt: skip

    def pairs_of_words(self, x):
        return {pair for pair in pairwise(x) if all(token in self.words for token in pair)}

    def share(self, x, aim, expected=None):
        """How much of its bias a text needs that is to be so far above γ, or what is expected."""
        text = x[self.start :]
        written = sum(pair[0] in self.words and pair[1] in self.words for pair in pairwise(text))
        pairs = self.pairs_of_words(text)
        green = sum(own_coin(self.key, *pair) for pair in pairs)
        ahead = green - (expected or self.key.gamma) * len(pairs) - aim * written
        return min(max(1 - ahead / 10, 0.0), 1.0)

    def sides(self, x, at):
        """How many neighbours are words, or will be."""
        beside = [x[place] for place in (at - 1, at + 1) if 0 <= place < len(x)]
        return sum(token == MASK or token in self.words for token in beside)


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
        there, inside = self.pairs_of_words(x), self.sides(x, at)
        after = x[at + 1] if at + 1 < len(x) else None

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
        sure = {at: self.sure(rows, at, self.marked(x, rows, at)) for at in places}
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


class NaiveEngine(Naive):
    """An engine draws from biased logits, and measures its confidence on them."""

    most = 1

    def logits(self, x):
        rows = super().logits(x)
        biased, self.likely = [*rows], {}
        for at in (at for at, token in enumerate(x) if token == MASK):
            bias = self.bias(x, rows, at)
            biased[at] = [logit + more for logit, more in zip(rows[at], bias, strict=True)]
        return biased

    def marked(self, x, rows, at):
        return self.pick(rows[at], at)

    def beside(self, x, rows, place):
        """The likeliest tokens at a place with their weights; what is revealed counts whole."""
        if not 0 <= place < len(x):
            return {}
        if x[place] != MASK:
            return {x[place]: 1.0}
        if place not in self.likely:
            p = torch.tensor(rows[place]).softmax(0).tolist()
            likeliest = sorted(range(len(p)), key=lambda token: -p[token])[: self.most]
            self.likely[place] = {token: p[token] if self.most > 1 else 1.0 for token in likeliest}
        return self.likely[place]

    def bias(self, x, rows, at):
        left, right = (
            {u: weight for u, weight in self.beside(x, rows, place).items() if u in self.words}
            for place in (at - 1, at + 1)
        )

        def gain(v):
            before = sum(p * own_coin(self.key, u, v) for u, p in left.items())
            return self.delta * (
                before + sum(p * own_coin(self.key, v, w) for w, p in right.items())
            )

        return self.over_words(gain, self.delta * (sum(left.values()) + sum(right.values())))


class NaiveEngineExpected(NaiveEngine):
    most = 8


class NaiveEngineFresh(NaiveEngineExpected):
    def bias(self, x, rows, at):
        there, inside = self.pairs_of_words(x), self.sides(x, at)
        after = x[at + 1] if at + 1 < len(x) else None
        return [
            0.5 * self.delta * inside if (x[at - 1], v) in there or (v, after) in there else more
            for v, more in enumerate(super().bias(x, rows, at))
        ]


class NaiveEngineAdaptive(NaiveEngineFresh):
    def bias(self, x, rows, at):
        share = self.share(x, self.delta / 20)
        return [share * more for more in super().bias(x, rows, at)]


class NaiveGumbel(Naive):
    def uniform(self, at, token, drawn):
        return ((hashed(self.key, "gumbel", at, token) >> 11) + 0.5) / 2**53


NAIVE = {
    "engine-predictive": NaiveEngine,
    "engine-expected": NaiveEngineExpected,
    "engine-fresh": NaiveEngineFresh,
    "engine-adaptive": NaiveEngineAdaptive,
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
}
