"""Tensors on which the transformer's kernels and torch must agree.

`models/test_fused.py` runs them in Triton's interpreter, `gpu.py` on a GPU.
"""

import os

import torch

from dllmark.models.transformer import Cache, Config, Transformer, rotary_angles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks at it when a kernel is defined
try:
    from dllmark.models import fused
finally:
    os.environ.pop("TRITON_INTERPRET", None)

DTYPES = fused.DTYPES

HEADS = [  # queries, keys, their width
    (4, 4, 64),
    (7, 1, 128),
    (19, 17, 64),  # more than one program takes
    (3, 3, 12),  # no power of two
]
WIDTHS = [1, 77, 512, 1100]


def config_of(heads, kv_heads, head_width, **others):
    return Config(
        vocab_size=50, width=heads * head_width, layers=2, heads=heads, kv_heads=kv_heads,
        mlp_width=72, max_length=64, **others,
    )  # fmt: skip


def some(*shape, dtype, seed=0):
    values = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, dtype)


def heads_to_turn(heads, kv_heads, width, dtype, *, batch=2, length=3):
    """Queries, keys, the positions they have, and the angles of these."""
    query = some(batch, length, heads, width, dtype=dtype)
    key = some(batch, length, kv_heads, width, dtype=dtype, seed=1)
    at = torch.arange(5, 5 + length, device=DEVICE)
    return query, key, at, rotary_angles(config_of(heads, kv_heads, width), at)


def turned_one_by_one(x, at, theta=500_000.0):
    """Turn pair after pair of coordinates as complex numbers."""
    turned, half = x.double().clone(), x.shape[-1] // 2
    for place, position in enumerate(at.tolist()):
        for number in range(half):
            angle = position * theta ** (-2 * number / x.shape[-1])
            turn = torch.polar(torch.tensor(1.0), torch.tensor(angle)).to(x.device)
            point = torch.complex(turned[:, place, :, number], turned[:, place, :, number + half])
            turned[:, place, :, number] = (point * turn).real
            turned[:, place, :, number + half] = (point * turn).imag
    return turned


def normed_exactly(x, weight, eps):
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def near(one, other):
    """Check that two results differ by rounding only."""
    rounding = max(2 * torch.finfo(one.dtype).eps, 1e-5)
    torch.testing.assert_close(one, other.to(one.dtype), rtol=rounding, atol=3e-5)


def make_transformer(dtype, **others):
    """A small model whose heads share keys, with biases, as Dream has."""
    torch.manual_seed(0)
    model = Transformer(config_of(4, 2, 64, qkv_bias=True, **others)).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1, std=0.2)
    return model.to(DEVICE, dtype).eval()


def some_tokens(batch=2, length=9):
    rng = torch.Generator().manual_seed(1)
    return torch.randint(0, 50, (batch, length), generator=rng).to(DEVICE)


def logits_of(model, tokens):
    """All logits of a text, and those of some positions when only its end is computed again."""
    cache = Cache(model.config, tokens, model.embedding.weight.dtype)
    everywhere = model(tokens, cache=cache)
    at = torch.arange(4, tokens.shape[1], device=tokens.device)
    some = at[1:].expand(len(tokens), -1)
    again = model(tokens.flip(1), logit_positions=some, cache=cache, at=at)
    return torch.cat([everywhere, again], dim=1)
