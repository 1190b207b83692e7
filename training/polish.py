"""Polish a model with its teacher's judgement: policy gradient on the model's own texts.

Usage: python training/polish.py packed/ --start model.safetensors --out polished.safetensors

The model writes at temperature 0.8. A token costs the teacher's surprise at it and at what follows,
and a fine if the text repeats it, both in nats. What costs less than expected where it stands
becomes likelier there (REINFORCE, Williams 1992). The training loss goes on beside it. Writes the
weights, and beside them a log.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dllmark.quality.perplexity import load_judge
from dllmark.quality.repetition import repeated_ngrams
from dllmark.sampling.settings import Llada
from teacher import Teacher
from train import MASK
from tuning import BLOCK, FIRST, LENGTH, PROMPT, Tuning, command_line

WRITE_EVERY = 4
"""Steps from one batch of texts to the next."""

TEMPERATURE = 0.8

FINE = 3.4
"""What a repeated pair of tokens costs, in nats: as much as a token of one in thirty."""

WORST = 8.0
"""More surprise than this counts as this."""

AHEAD = 32
"""How many of the next tokens are learned from in a state."""


@dataclass
class Texts:
    """Texts [B, L] the model wrote, after which step each token was there, and what it costs."""

    tokens: Tensor
    written: Tensor
    costs: Tensor


def repeats(tokens: Tensor) -> Tensor:
    """Return [B, L]: which share of a token's two pairs stands elsewhere in the text too.

    >>> repeats(torch.tensor([[7, 8, 5, 7, 8]])).tolist()
    [[0.25, 0.25, 0.0, 0.25, 0.25]]
    """
    pairs = tokens[:, :-1] << 32 | tokens[:, 1:]
    count = (pairs[:, :, None] == pairs[:, None, :]).sum(-1)
    share = 1 - 1 / count.float()
    return (pad(share, (0, 1)) + pad(share, (1, 0))) / 2


def costs(surprise: Tensor, tokens: Tensor) -> Tensor:
    """Return [B, L]: what each token costs, a part of its two successors' surprise included."""
    later = surprise + surprise.roll(-1, 1) / 2 + surprise.roll(-2, 1) / 4
    later[:, -2:] = surprise[:, -2:] * 1.75
    return later / 1.75 + FINE * repeats(tokens)


def policy_loss(model: nn.Module, texts: Texts, random: torch.Generator) -> Tensor:
    """Return the loss whose gradient makes cheap tokens likelier, in a random state of each text.

    What one would expect in a state is fitted to how uncertain the model is there.
    """
    tokens = texts.tokens
    when = torch.randint(LENGTH - PROMPT, (len(tokens), 1), generator=random, device=tokens.device)
    visible = texts.written <= when
    learned = (~visible & (texts.written <= when + AHEAD)).nonzero(as_tuple=True)
    logits = model(torch.where(visible, tokens, MASK))[learned]
    log_p = (logits[:, FIRST:].float() / TEMPERATURE).log_softmax(-1)
    said = log_p.gather(-1, (tokens[learned] - FIRST).clamp(min=0)[:, None])[:, 0]
    entropy = -(log_p.exp() * log_p).sum(-1).detach()
    found = texts.costs[learned]
    known = torch.stack([torch.ones_like(entropy), entropy, entropy**2], 1)
    with torch.autocast(tokens.device.type, enabled=False):
        expected = (known @ torch.linalg.lstsq(known, found[:, None]).solution)[:, 0]
    return ((found - expected).clamp(-3, 3) * said).mean()


def polish(tuning: Tuning) -> None:
    """Train for the given steps, logging what the model writes meanwhile."""
    on_gpu = tuning.device == "cuda"
    teacher = Teacher(load_judge(), tuning.tokenizer, FIRST)
    if on_gpu:
        teacher.judge.model.to(torch.bfloat16)
    sampler = Llada(LENGTH - PROMPT, BLOCK, TEMPERATURE, suppress_end=True)

    def fresh(step: int) -> Texts:
        tokens, written = tuning.write(sampler, step)
        surprise = teacher.surprise(tokens).clamp(max=WORST)
        shares = [repeated_ngrams(row) for row in tokens[:, PROMPT:].tolist()]
        nats, repeated = surprise[:, PROMPT:].mean().item(), sum(shares) / len(shares)
        tuning.note(step, nats=nats, repeated=repeated, score=nats + FINE * repeated)
        return Texts(tokens, written, costs(surprise, tokens))

    for step in range(tuning.steps):
        if step % WRITE_EVERY == 0:
            texts = fresh(step)
        with torch.autocast(tuning.device, torch.bfloat16, enabled=on_gpu):
            loss = tuning.plain_loss()
            loss = loss + policy_loss(tuning.model, texts, tuning.random)
        tuning.learn(loss, min(1.0, 2 * (1 - step / tuning.steps), (step + 1) / 10))
    tuning.finish()


if __name__ == "__main__":
    polish(command_line(__doc__, steps=120, batch=64, rate=3e-4))
