"""Models small enough to check by hand: one with random weights, one that says what it is told."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from dllmark.models.families import EMBEDDED
from dllmark.models.loading import Model
from dllmark.models.transformer import Config, Transformer
from dllmark.sampling.texts import generate

PAD, END, MASK = 0, 1, 2
FAMILY = replace(EMBEDDED, chat_message="w30 {content}", chat_reply=" w31")
PROMPTS = ["w1 w2 w3 w4 w5", "w6 w7", "w8 w9 w10"]


def model_of(transformer, tokenizer):
    """A model, for a tokenizer whose first ids are padding, end and mask."""
    return Model(
        name="tiny", family=FAMILY, transformer=transformer, tokenizer=tokenizer,
        mask_id=MASK, end_ids=(END,), pad_id=PAD,
    )  # fmt: skip


def config_for(tokenizer, **options):
    """Two ids more than the tokenizer has, as models round their heads up."""
    sizes = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "mlp_width": 64}
    vocab_size = tokenizer.vocab_size + 2
    return Config(vocab_size=vocab_size, max_length=160, **{**sizes, **options})


def tiny_model(tokenizer, seed=0, **options):
    """A transformer with random weights, large enough that its predictions differ."""
    transformer = Transformer(config_for(tokenizer, **options)).requires_grad_(False).eval()
    random = torch.Generator().manual_seed(seed)
    for name, parameter in transformer.named_parameters():
        if "norm" not in name:
            parameter.normal_(0, 0.5, generator=random)
    return model_of(transformer, tokenizer)


class Script(nn.Module):
    """Gives fixed logits: row i for the i-th position after a prompt of one token."""

    def __init__(self, config, logits):
        super().__init__()
        self.config, self.logits = config, logits
        self.embedding = nn.Embedding(1, 1)

    def forward(self, tokens, attended, logit_positions, cache=None, at=None, block_length=0):
        return self.logits[logit_positions - 1].clone()


def scripted_model(tokenizer, likely, **options):
    """A model that gives some tokens a probability, {token: p}, at each position after the prompt.

    The rest of the probability is spread evenly over the other tokens.
    """
    config = config_for(tokenizer, **options)
    probabilities = torch.zeros(len(likely), config.vocab_size)
    for row, given in zip(probabilities, likely, strict=True):
        row[:] = (1 - sum(given.values())) / (tokenizer.vocab_size - len(given))
        for token, p in given.items():
            row[token] = p
    return model_of(Script(config, probabilities.log()), tokenizer)


def steps_of(model, sampler, watermark=None, prompts=PROMPTS, tokens=32, **options):
    """Every step of a generation, in one batch, without the chat template."""
    steps = []
    generate(
        model, prompts, watermark, sampler, tokens=tokens, chat=False, on_step=steps.append,
        **options,
    )  # fmt: skip
    return steps


def written(model, sampler, watermark=None, **options):
    """All tokens [B, L] at the end of a generation."""
    return steps_of(model, sampler, watermark, **options)[-1].tokens


def order_of(steps):
    """The generated positions of the first text in the order they appeared, from 0."""
    before = [step.revealed[0, step.start :] for step in steps]
    before = [torch.zeros_like(before[0]), *before]
    return [at for old, new in pairwise(before) for at in (new & ~old).nonzero()[:, 0].tolist()]


def batch_generator(seed, batch=0):
    """The randomness of a batch, as `generate` promises it for a seed."""
    mixed = np.random.SeedSequence(seed, spawn_key=(batch,)).generate_state(1)[0]
    return torch.Generator().manual_seed(int(mixed))


def padded(model, prompts, tokens):
    """A batch ready for a naive sampler: tokens, attended positions, and where masks start."""
    encoded = [model.tokenizer.encode(prompt).tolist() for prompt in prompts]
    start = max(len(ids) for ids in encoded)
    x = torch.tensor([[PAD] * (start - len(ids)) + ids + [MASK] * tokens for ids in encoded])
    attended = torch.tensor([[False] * (start - len(ids)) + [True] * (len(ids) + tokens)
                             for ids in encoded])  # fmt: skip
    return x, attended, start


def forbid(model, logits):
    """Rule out the mask and the ids that are no tokens: the official code trusts the model."""
    logits[..., MASK] = -torch.inf
    logits[..., model.tokenizer.vocab_size :] = -torch.inf
    return logits
