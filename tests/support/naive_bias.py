"""The bias as a slow loop over the papers' formulas: one position and one token at a time."""

import torch
from siphash24 import siphash24

VOCABULARY = 37  # two ids more than the small tokenizer has tokens, and no multiple of 8
SPECIAL = {0, 1, 2, 35, 36}
DELTA = 1.75


def green(key, left, right):
    message = (left << 32 | right).to_bytes(8, "little")
    hashed = int.from_bytes(siphash24(message, key=key.secret.reveal()).digest(), "little")
    return hashed < int(key.gamma * 2**64)


def naive_side(key, strategy, top_k, x, revealed, z, j, colour):
    """The bias of every token from the neighbour at position j, where colour(u, v) is its pair."""
    if not 0 <= j < len(x):
        return [0.0] * VOCABULARY  # "no constraint at sequence end"
    if revealed[j]:
        neighbours = [(int(x[j]), 1.0)]
    elif strategy in ("kgw", "bidirectional"):
        neighbours = []
    elif strategy in ("predictive", "predictive-bidirectional"):
        neighbours = [(int(z[j].argmax()), 1.0)]
    else:
        p = z[j].float().softmax(-1)
        best = sorted(range(VOCABULARY), key=lambda u: -p[u])[:top_k]
        neighbours = [(u, float(p[u])) for u in best]
    bias = []
    for v in range(VOCABULARY):
        total = 0.0
        for u, weight in neighbours:
            if u in SPECIAL:
                continue
            total += weight * (key.gamma if v in SPECIAL else float(colour(u, v)))
        bias.append(total)
    return bias


def naive_logits(key, strategy, top_k, x, revealed, z, i):
    """Algorithms 1 to 5: the biased logits of position i.

    In a fresh strategy, what would repeat a pair that stands in the text gets the mean.
    """
    sides = [naive_side(key, strategy, top_k, x, revealed, z, i - 1,
                        lambda u, v: green(key, u, v))]  # fmt: skip
    if "bidirectional" in strategy:
        sides.append(naive_side(key, strategy, top_k, x, revealed, z, i + 1,
                                lambda w, v: green(key, v, w)))  # fmt: skip
    gains = [sum(side[v] for side in sides) for v in range(VOCABULARY)]
    if strategy.startswith("fresh"):
        beside = [j for j in (i - 1, i + 1) if 0 <= j < len(x)]
        sides = sum(not revealed[j] or int(x[j]) not in SPECIAL for j in beside)
        for v in naive_repeats(x, revealed & ~torch.isin(x, torch.tensor([*SPECIAL])), i):
            gains[v] = key.gamma * sides
    return [float(z[i, v]) + DELTA * gains[v] for v in range(VOCABULARY)]


def naive_repeats(x, revealed, i):
    """The tokens that would make at position i a pair which stands elsewhere in the text."""
    there = [
        (int(x[j]), int(x[j + 1]))
        for j in range(len(x) - 1)
        if revealed[j] and revealed[j + 1] and i not in (j, j + 1)
    ]
    after = {v for u, v in there if i > 0 and revealed[i - 1] and u == x[i - 1]}
    return after | {v for v, w in there if i + 1 < len(x) and revealed[i + 1] and w == x[i + 1]}
