"""From logits to tokens, and how certain the model is of each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllmark.sampling.settings import Dream, Llada, Llada2, Parallel, Sampler


def draw_noise(
    sampler: Sampler, logits: Tensor, generator: torch.Generator, places: Tensor | None = None
) -> Tensor | None:
    """Return log(-log u) for uniform u, in float64, one for each logit; None at temperature 0.

    Subtracting it from logits and taking the largest draws from their softmax (Gumbel-max). If only
    some `places` of the logits [B, W, V] need it, it is the same there, and anything elsewhere.
    """
    if sampler.temperature == 0:
        return None
    u = torch.rand(logits.shape, generator=generator, device=logits.device, dtype=torch.float64)
    if places is None:
        return u.log_().neg_().log_()
    return u.index_copy_(1, places, u.index_select(1, places).log_().neg_().log_())


def warp_logits(sampler: Sampler, logits: Tensor) -> Tensor:
    """Return the logits after temperature, top_p and top_k: those that a token is drawn from.

    LLaDA2 takes top_k first, and neither at temperature 0.
    """
    if sampler.temperature > 0:
        logits = logits / sampler.temperature
    if isinstance(sampler, Llada2):
        if sampler.temperature == 0:
            return logits
        return keep_likeliest(keep_likeliest(logits, 1.0, sampler.top_k), sampler.top_p, None)
    top_k = sampler.top_k if isinstance(sampler, Dream) else None
    return keep_likeliest(logits, sampler.top_p, top_k)


def keep_likeliest(logits: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """Set to -inf all but the likeliest tokens: those that reach top_p together, then top_k."""
    if top_p < 1:
        ordered = logits.sort(-1, descending=True).values
        before = ordered.softmax(-1).cumsum(-1).roll(1, -1)
        before[..., 0] = 0
        least = ordered.masked_fill(before > top_p, torch.inf).amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return logits


def draw(warped: Tensor, noise: Tensor | None) -> Tensor:
    """Return a token for each row of warped logits: the likeliest after the noise."""
    return (warped if noise is None else warped - noise).argmax(-1)


def reachable_tokens(
    sampler: Sampler, logits: Tensor, noise: Tensor | None, gain: Tensor
) -> Tensor | None:
    """Return [..., V]: what `draw` may return once the logits have gained up to `gain` [...].

    None where it could be any: what top_p leaves depends on all logits. Of top_k it is known that a
    token which stays below the k-th best of now stays below the k-th best.

    >>> greedy, logits = Llada(temperature=0), torch.tensor([1.0, 3.5, 4.0])
    >>> reachable_tokens(greedy, logits, None, torch.tensor(2.0)).tolist()
    [False, True, True]
    """
    if sampler.top_p < 1:
        return None
    if isinstance(sampler, Dream | Llada2) and sampler.top_k is not None:
        score = logits
        best = logits.topk(min(sampler.top_k, logits.shape[-1])).values[..., -1:]
    else:
        score = warp_logits(sampler, logits)
        score = score if noise is None else score - noise
        best = score.amax(-1, keepdim=True)
        gain = gain / sampler.temperature if sampler.temperature > 0 else gain
    return ~(score < best - 1.001 * gain[..., None] - 1e-3)  # NaN is reachable


def confidence(
    sampler: Sampler,
    logits: Tensor,
    biased: Tensor,
    noise: Tensor | None,
    ends: Sequence[int],
    generator: torch.Generator,
) -> Tensor:
    """Return [B, W]: who comes first, the highest, from the logits [B, W, V] of a block.

    The logits carry no watermark. `biased` are those that a position's candidate is drawn from: the
    same, so that the order does not depend on a key, or with the bias of a watermark that biases
    the order. How certain the model is of a candidate is always what it says itself.
    """
    order = "low_confidence" if isinstance(sampler, Parallel | Llada2) else sampler.order
    shape, device = logits.shape[:-1], logits.device
    if order in ("random", "origin"):
        score = torch.rand(shape, generator=generator, device=device)
    elif order == "left_to_right":
        score = -torch.arange(shape[1], device=device, dtype=torch.float32).expand(shape)
    else:
        score = certainty(sampler, order, logits, biased, noise)
    if isinstance(sampler, Llada) and sampler.end_last:
        candidates = draw(warp_logits(sampler, biased), noise)
        for end in ends:
            score = score.masked_fill(candidates == end, torch.finfo(score.dtype).min)
    if isinstance(sampler, Dream) and sampler.alg_temp:
        u = torch.rand(shape, generator=generator, device=device)
        score = score / sampler.alg_temp - (-u.log()).log()
    return score


def by_candidate(sampler: Sampler) -> bool:
    """Return whether the order depends on the candidate, the token a sampler would write there."""
    return isinstance(sampler, Parallel | Llada2) or sampler.order in (
        "low_confidence",
        "maskgit_plus",
    )


def certainty(
    sampler: Sampler, order: str, logits: Tensor, biased: Tensor, noise: Tensor | None
) -> Tensor:
    """Return how certain the model is of each position.

    Dream and LLaDA2 measure it after temperature, top_p and top_k; LLaDA before. Its order and
    LLaDA2's is by a logarithm: that of the softmax in one operation, since the logit less
    `logsumexp` would round away what tells almost sure tokens apart.
    """
    warped = warp_logits(sampler, logits)
    measured = warped if isinstance(sampler, Dream | Llada2) else logits
    p = measured.log_softmax(-1) if order == "low_confidence" else measured.softmax(-1)
    if order == "entropy":
        return torch.xlogy(p, p).sum(-1)
    if order == "topk_margin":
        best, second = p.topk(2).values.unbind(-1)
        return best - second
    candidates = draw(warped if biased is logits else warp_logits(sampler, biased), noise)
    return p.gather(-1, candidates[..., None])[..., 0]
