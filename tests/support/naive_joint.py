"""`joint` as a slow loop over its formulas: one text, one pair of place and token at a time."""

import math
from itertools import pairwise

import torch
from naive_marks import BLOCK, NaiveExpected, own_coin
from tiny import MASK, batch_generator


class NaiveJoint(NaiveExpected):
    """Enumerates every pair of place and token that the sampler could write next."""

    surer = 0  # at temperature 0, how often the certainty of a token counts beside that

    def write(self, per_step, seed):
        own_seed = batch_generator(seed).initial_seed() ^ 0x5EED
        self.redraws = torch.Generator().manual_seed(own_seed)
        return super().write(per_step, seed)

    def bias(self, x, logits, at):
        """What each token gains in expectation; one that repeats a pair, the mean of all keys."""
        left, right = sides = self.neighbours(x, logits, at, 1.0, most=8)
        there = {pair for pair in pairwise(x) if MASK not in pair}
        after = x[at + 1] if at + 1 < len(x) else None
        most = self.delta * sum(map(sum, map(dict.values, sides)))

        def gain(v):
            if (x[at - 1], v) in there or (v, after) in there:
                return self.key.gamma * most
            before = sum(p * own_coin(self.key, u, v) for u, p in left.items())
            return self.delta * (
                before + sum(p * own_coin(self.key, v, w) for w, p in right.items())
            )

        return self.over_words(gain, most)

    def step(self, x, block, per_step, random):
        rows = self.logits(x)
        self.draw_noise(random)
        own = {at: self.pick(rows[at], at) for at in block}
        gains = {at: self.gains(x, rows, at) for at in block if x[at] == MASK}
        near = set()
        for _ in range(per_step):
            masks = [at for at in block if x[at] == MASK]
            places = self.open([at for at in masks if at not in near] or masks)
            first = max(places, key=lambda at: self.sure(rows, at, own[at]))
            at, token = self.choice(rows, block, places, gains, (first, own[first]))
            x[at] = token
            near |= {at - 1, at + 1}

    def open(self, places):
        """Those that may be written next."""
        return places

    def gains(self, x, rows, at):
        """What each token gains over the mean, as far as the text needs it."""
        return [self.needed(x) * (gain - self.mean(x, at)) for gain in self.bias(x, rows, at)]

    def needed(self, x):
        """Which share of its strength the mark has in this step."""
        return 1.0

    def choice(self, rows, block, places, gains, own):
        if not self.temperature:
            return self.best(rows, places, gains)
        shape = (1, 1 + BLOCK * 32)
        u = torch.rand(shape, generator=self.redraws, dtype=torch.float64)[0].tolist()
        if own[1] not in self.likely(rows[own[0]]):
            return own
        before = normal(self.chances(rows, places))
        after = normal({pair: p * math.exp(gains[pair[0]][pair[1]] / self.temperature)
                        for pair, p in before.items()})  # fmt: skip
        after = self.cooled(rows, before, after)
        if u[0] * before[own] <= after[own]:
            return own
        more = {}
        for pair in before:
            number = (pair[0] - block[0]) * 32 + self.likely(rows[pair[0]]).index(pair[1])
            if after[pair] > before[pair]:
                noise = math.log(-math.log(u[1 + number]))
                more[pair] = math.log(after[pair] - before[pair]) - noise
        return max(more, key=more.__getitem__)

    def cooled(self, rows, before, after):
        """What becomes of the chances where they must not become less sure."""
        return after

    def best(self, rows, places, gains):
        """At temperature 0: what is gained, less what logits must lose so that it comes first."""
        sure = {at: torch.tensor(rows[at]).log_softmax(0).tolist() for at in places}
        worth = {}
        for at in places:
            for token in self.likely(rows[at]):
                reached = [(one, max(c for c in sure[one] if c <= sure[at][token]))
                           for one in places if one != at]  # fmt: skip
                lost = sum(max(sure[one]) - c for one, c in [(at, sure[at][token]), *reached])
                worth[at, token] = gains[at][token] - lost + self.surer * sure[at][token]
        return max(worth, key=worth.__getitem__)

    def mean(self, x, at):
        return self.delta * self.key.gamma * ((at > 0) + (at + 1 < len(x)))

    def likely(self, row):
        return sorted(range(len(row)), key=lambda token: -row[token])[:32]

    def chances(self, rows, places):
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
                found[at, token] = q[at][token] * math.prod(others)
        return found


def normal(chances):
    """Make some chances add up to 1."""
    total = sum(chances.values())
    return {pair: p / total for pair, p in chances.items()}


class NaiveOrder(NaiveJoint):
    """Each chance is the mean over all keys, under which every pair is green with γ."""

    def bias(self, x, logits, at):
        sides = self.neighbours(x, logits, at, 1.0, most=8)
        there = {pair for pair in pairwise(x) if MASK not in pair}
        after = x[at + 1] if at + 1 < len(x) else None
        weights = [p for side in sides for p in side.values()]
        most, gamma, t = self.delta * sum(weights), self.key.gamma, self.temperature or 1e-3

        def gain(v):
            if (x[at - 1], v) in there or (v, after) in there:
                return gamma * most
            powers = [self.delta * p / t for p in weights]
            return t * sum(a + math.log(gamma + (1 - gamma) * math.exp(-a)) for a in powers)

        return self.over_words(gain, most)


class NaiveAdaptive(NaiveJoint):
    """Strong until a text is ahead of its aim, and none where it is ten green pairs ahead."""

    aim = 1 / 36  # how far above γ, for each unit of δ

    def needed(self, x):
        return self.share(x, self.aim * self.delta)


class NaiveCooled(NaiveAdaptive):
    """What is surer becomes likelier, until what is written is as sure as without the mark."""

    aim, surer = 1 / 72, 3

    def cooled(self, rows, before, after):
        sure = {pair: max(-30.0, self.sure(rows, *pair)) for pair in before}

        def colder(by):
            return normal({pair: p * math.exp(by * sure[pair]) for pair, p in after.items()})

        def mean(chances):
            return sum(p * sure[pair] for pair, p in chances.items())

        if mean(after) >= mean(before):
            return after
        low, high = 0.0, 3 / self.temperature
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if mean(colder(middle)) < mean(before) else (low, middle)
        return colder(low)


class NaiveExpecting(NaiveAdaptive):
    """The aim is above what the left tokens of the text lead its detector to expect."""

    aim = 1 / 60
    above = None  # by how much a pair is likelier green than γ, for each left token

    def needed(self, x):
        lefts = [u for u, v in pairwise(x[self.start :]) if u in self.words and v in self.words]
        more = sum(self.above[u] for u in lefts) / max(1, len(lefts))
        return self.share(x, self.aim * self.delta, self.key.gamma + max(0.0, more))


class NaiveCooledExpecting(NaiveExpecting, NaiveCooled):
    """That aim, and as sure as without the mark."""

    aim = 1 / 120


class NaiveLeftmost(NaiveCooled):
    """It chooses among the tokens of one place, the first that may be written."""

    def open(self, places):
        return [min(places)]


class NaiveOrdered(NaiveAdaptive):
    """Where a text needs less of the mark, it has as much more of the mark's order."""

    def gains(self, x, rows, at):
        needed, mean, order = self.needed(x), self.mean(x, at), NaiveOrder.bias(self, x, rows, at)
        kept = ((1 - needed) * (gain - mean) for gain in order)
        return [sum(pair) for pair in zip(super().gains(x, rows, at), kept, strict=True)]
