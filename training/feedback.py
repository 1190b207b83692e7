"""What a model learns from texts it wrote itself: from copies, and from a teacher's judgement.

A small diffusion model that writes its most certain token falls into loops, because nothing is as
certain as a copy. Likelihood on good text cannot unlearn that: good text holds no loops. So the
model writes, and in the very states it chose its tokens in

- what it copied from its own text becomes less likely (unlikelihood: Welleck et al., 2020);
- what costs less than expected there becomes likelier (REINFORCE: Williams, 1992). A token costs
  the surprise of a causal teacher at it and at what follows, and a fine if it is a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dllmark.models.transformer import Transformer
from dllmark.quality.perplexity import Judge

STRETCH = 4
"""A token is copied when it is part of this many tokens in a row that stand elsewhere too."""

AHEAD = 8
"""How many of the next tokens are learned from in a state, at one token a step."""

FINE = 4.0
"""What a copied token costs beside the teacher's surprise, in nats."""

WORST = 8.0
"""More surprise than this counts as this."""

JUDGED = 32
"""Texts that the teacher reads together."""


@dataclass
class Texts:
    """Texts [B, L] the model wrote, after which step each token was there, and what it costs."""

    tokens: Tensor
    written: Tensor
    steps: int
    costs: Tensor

    def some(self, count: int, random: torch.Generator) -> Texts:
        """Return so many of them."""
        chosen = torch.randperm(len(self.tokens), generator=random, device=random.device)[:count]
        return Texts(self.tokens[chosen], self.written[chosen], self.steps, self.costs[chosen])


def copied(tokens: Tensor, source: Tensor) -> Tensor:
    """Return [B, L]: the tokens in a stretch that also stands where `source` [B, L] is True.

    >>> text = torch.tensor([[7, 8, 9, 10, 6, 7, 8, 9, 10]])
    >>> copied(text, torch.arange(9)[None] < 4).int().tolist()
    [[0, 0, 0, 0, 0, 1, 1, 1, 1]]
    """
    same = tokens[:, :, None] == tokens[:, None, :]
    same &= ~torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
    ends = same.clone()  # [B, i, j]: the stretch that ends at i is the stretch that ends at j
    ends[:, : STRETCH - 1] = False
    ends[:, :, : STRETCH - 1] = False
    for back in range(1, STRETCH):
        ends[:, back:, back:] &= same[:, :-back, :-back]
    inside = ends.clone()
    for back in range(1, STRETCH):
        inside[:, :-back, :-back] |= ends[:, back:, back:]
    return (inside & source[:, None, :]).any(-1)


@torch.no_grad()
def surprise(judge: Judge, tokens: Tensor, vocabulary: int) -> Tensor:
    """Return [B, L]: how unlikely, in nats, a causal model finds each token, given all before.

    Its first `vocabulary` tokens must be those of the texts; no other is a choice.
    """
    found = torch.zeros(tokens.shape, device=tokens.device)
    for rows, part in zip(found.split(JUDGED), tokens.split(JUDGED), strict=True):
        logits = judge.model(input_ids=part, use_cache=False).logits[:, :-1, :vocabulary]
        losses = cross_entropy(logits.transpose(1, 2).float(), part[:, 1:], reduction="none")
        rows[:, 1:] = losses
    return found.clamp(max=WORST)


def costs(surprise: Tensor, copies: Tensor) -> Tensor:
    """Return [B, L]: what each token costs, a part of its two successors' surprise included."""
    later = surprise + surprise.roll(-1, 1) / 2 + surprise.roll(-2, 1) / 4
    later[:, -2:] = surprise[:, -2:] * 1.75
    return later / 1.75 + FINE * copies


def feedback(
    model: Transformer,
    texts: Texts,
    random: torch.Generator,
    *,
    mask: int,
    first: int,
    natural: float,
) -> tuple[Tensor, Tensor]:
    """Return the losses of copies and of costs, in a random state of each text.

    Only tokens from `first` on count: to end the text must not be the way out of a loop. Texts of
    which no more than the share `natural` is copied repeat themselves as real ones do: these
    copies are not punished.
    """
    tokens = texts.tokens
    when = torch.randint(texts.steps, (len(tokens), 1), generator=random, device=tokens.device)
    visible = texts.written <= when
    ahead = max(1, AHEAD * texts.steps // tokens.shape[1])
    coming = ~visible & (texts.written <= when + ahead) & (tokens >= first)
    loops = copied(tokens, torch.ones_like(visible)).float().mean(1, keepdim=True) > natural
    copies = (copied(tokens, visible) & loops)[coming].float()
    log_p = model(torch.where(visible, tokens, mask))[coming][:, first:].float().log_softmax(-1)
    said = log_p.gather(-1, (tokens[coming] - first)[:, None])[:, 0]
    unlikely = -torch.log1p(-said.exp().clamp(max=1 - 1e-4))
    entropy = -(log_p.exp() * log_p).sum(-1).detach()
    excess = (texts.costs[coming] - expected(texts.costs[coming], entropy)).clamp(-3, 3)
    return (unlikely * copies).mean(), (excess * said).mean()


def expected(costs: Tensor, entropy: Tensor) -> Tensor:
    """Return what tokens cost on average where the model is as uncertain as there."""
    known = torch.stack([torch.ones_like(entropy), entropy, entropy**2], 1)
    with torch.autocast(costs.device.type, enabled=False):
        fitted: Tensor = torch.linalg.lstsq(known, costs[:, None]).solution
        return (known @ fitted)[:, 0]
