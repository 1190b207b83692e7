"""Small models with random weights, and the loops of engines that are not on PyPI.

The loops are written from the engines' documentation and behaviour, naively. They stand in for the
official code of LLaDA and of Dream, which comes with the checkpoints.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

PAD, END, MASK = 0, 1, 2
PROMPT = torch.tensor([[5, 9, 17, 4, 30]])


class Toy(nn.Module):
    """Predicts from both neighbours and the position; words only, no special tokens.

    It has `words` ids, of which it writes all from 3 on, or those allowed. The rest of the
    vocabulary is padding of the head, as real models have it. A shifted model predicts at each
    position the token after it.
    """

    def __init__(
        self, words, vocab_size, mask_id=MASK, shifted=False, model_type="toy", allowed=None
    ):
        super().__init__()
        random = torch.Generator().manual_seed(7)
        self.config = SimpleNamespace(mask_token_id=mask_id, model_type=model_type)
        self.words, self.vocab_size, self.shifted = words, vocab_size, shifted
        self.allowed = torch.arange(3, words) if allowed is None else torch.tensor(allowed)
        self.near = nn.Parameter(torch.randn(words, 16, generator=random))
        self.place = nn.Parameter(torch.randn(256, 16, generator=random))
        self.head = nn.Parameter(torch.randn(16, words, generator=random) / 4)
        self.requires_grad_(False)
        self.device = torch.device("cpu")

    def forward(self, input_ids, attention_mask=None, position_ids=None, **options):
        near = self.near[input_ids.clamp(max=self.words - 1)]
        hidden = 0.3 * (near.roll(1, 1) + near.roll(-1, 1)) + self.place[: input_ids.shape[1]]
        logits = torch.full((*input_ids.shape, self.vocab_size), -30.0)
        logits[..., self.allowed] = hidden @ self.head[:, self.allowed]
        if self.shifted:
            logits = torch.cat([logits[:, 1:], logits[:, -1:]], 1)
        return SimpleNamespace(logits=logits)


def small_toy(tokenizer, **options):
    """A toy for a tokenizer, its head two ids larger."""
    return Toy(tokenizer.vocab_size, tokenizer.vocab_size + 2, **options)


def narrow(model, size):
    """Leave a toy with a vocabulary of fewer tokens."""
    model.vocab_size = model.words = size
    model.allowed = torch.arange(3, size)
    return model


def llada_generate(model, prompt, steps=32, gen_length=64, block_length=32, cfg_scale=0.0,
                   mask_id=MASK, shifted=False):  # fmt: skip
    """LLaDA's official loop at temperature 0, low-confidence remasking, row by row."""
    masks = torch.full((len(prompt), gen_length), mask_id)
    x = torch.cat([prompt, masks], 1)
    is_prompt = x != mask_id
    blocks = gen_length // block_length
    for block in range(blocks):
        end = prompt.shape[1] + (block + 1) * block_length
        for step in range(steps // blocks):
            if cfg_scale:
                blind = torch.where(is_prompt, mask_id, x)
                seeing, unseeing = model(torch.cat([x, blind])).logits.chunk(2)
                logits = unseeing + (cfg_scale + 1) * (seeing - unseeing)
            else:
                logits = model(x).logits
            if shifted:
                logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
            best = logits.argmax(-1)
            sure = logits.softmax(-1).amax(-1)
            sure[:, end:] = -torch.inf
            sure[x != mask_id] = -torch.inf
            left = int((x[0, :end] == mask_id).sum())
            count = left // (steps // blocks - step)
            for row in range(len(x)):
                chosen = sure[row].topk(count).indices
                x[row, chosen] = best[row, chosen]
    return x


def _same(step, x, logits):
    return x if logits is None else logits


class DreamStandIn(Toy):
    """Stands in for Dream's model: the documented loop of `diffusion_generate` with its two hooks.

    Order of calls: the tokens hook once with (None, x, None); then at each step the model, the
    shift, the logits hook, the choice, and the tokens hook.
    """

    def __init__(self, words, vocab_size, mask_id=MASK, deaf=False, **options):
        super().__init__(words, vocab_size, mask_id, shifted=True, model_type="Dream", **options)
        self.deaf = deaf  # accepts the hooks and never calls them, as Fast-dLLM's variant

    @torch.no_grad()
    def diffusion_generate(self, inputs, *, max_new_tokens, steps, temperature=0.0, alg="entropy",
                           generation_tokens_hook_func=lambda step, x, logits: x,
                           generation_logits_hook_func=_same):  # fmt: skip
        mask_id = self.config.mask_token_id
        x = torch.cat([inputs, torch.full((len(inputs), max_new_tokens), mask_id)], 1)
        times = torch.linspace(1, 1e-3, steps + 1)
        x = generation_tokens_hook_func(None, x, None)
        for step in range(steps):
            masked = x == mask_id
            logits = self(x).logits
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
            if not self.deaf:
                logits = generation_logits_hook_func(step, x, logits)
            share = 1 - times[step + 1] / times[step] if step < steps - 1 else torch.tensor(1.0)
            p = (logits / temperature if temperature else logits).softmax(-1)
            tokens = torch.distributions.Categorical(p).sample() if temperature else p.argmax(-1)
            if alg == "origin":
                chosen = masked & (torch.rand(x.shape) < share)
            else:
                sure = (p * (p + 1e-10).log()).sum(-1).masked_fill(~masked, -torch.inf)
                chosen = torch.zeros_like(masked)
                count = int(masked.sum() / len(x) * share)
                chosen.scatter_(1, sure.topk(count).indices, True)
            x = torch.where(chosen & masked, tokens, x)
            if not self.deaf:
                x = generation_tokens_hook_func(step, x, logits)
        return x
