"""One bidirectional transformer: LLaDA, Dream and the embedded model are this with other numbers.

It is a LLaMA block (RMSNorm, rotary positions, SwiGLU) without a causal mask: every position sees
every other one, so the model can fill a mask anywhere from what stands on both sides of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu


@dataclass(frozen=True)
class Config:
    """The numbers that make one model of the family.

    `shifted` is Dream's habit: the output at position j - 1 predicts the token at position j.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    max_length: int
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    tied_head: bool = False
    shifted: bool = False

    @property
    def head_width(self) -> int:
        """The width of one attention head."""
        return self.width // self.heads


Pair = tuple[Tensor, Tensor]


class Cache:
    """The keys and values [B, H, L, head width] of all positions, layer by layer.

    An approximation (Fast-dLLM): a position that is not computed again keeps the keys and values
    it had when it last was, though the text around it has changed.
    """

    def __init__(self, config: Config, tokens: Tensor, dtype: torch.dtype) -> None:
        batch, length = tokens.shape
        shape = (batch, config.kv_heads, length, config.head_width)

        def empty() -> list[Tensor]:
            device = tokens.device
            return [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.layers)]

        self.keys, self.values = empty(), empty()


@dataclass
class Kept:
    """One layer of a cache, and the positions `at` [P] that are computed now."""

    cache: Cache
    layer: int
    at: Tensor

    def updated(self, key: Tensor, value: Tensor) -> Pair:
        """Put in the new keys and values [B, H, P, head width]; return those of all positions."""
        keys, values = self.cache.keys[self.layer], self.cache.values[self.layer]
        return keys.index_copy_(2, self.at, key), values.index_copy_(2, self.at, value)


class Norm(nn.Module):
    """RMSNorm, computed in float32 where the GPU has a kernel for it."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale each vector to unit root mean square, then by the learned weights."""
        return rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Attention(nn.Module):
    """Multi-head attention over all positions; several query heads may share a key head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        kv_width = config.kv_heads * config.head_width
        self.query = nn.Linear(config.width, config.width, bias=config.qkv_bias)
        self.key = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        self.value = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self, x: Tensor, rotation: Pair, mask: Tensor | None, kept: Kept | None = None
    ) -> Tensor:
        """Mix the positions of [B, L, D]; what is `kept` of other positions takes part."""
        batch, length, _ = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, length, -1, self.config.head_width)

        query = rotate(heads(self.query(x)), rotation).transpose(1, 2)
        key = rotate(heads(self.key(x)), rotation).transpose(1, 2)
        value = heads(self.value(x)).transpose(1, 2)
        if kept is not None:
            key, value = kept.updated(key, value)
        mixed = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            enable_gqa=self.config.kv_heads != self.config.heads,
        )
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class Block(nn.Module):
    """Attention, then a gated feed-forward layer, each added to what came in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = Norm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = Norm(config.width, config.norm_eps)
        self.gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(
        self, x: Tensor, rotation: Pair, mask: Tensor | None, kept: Kept | None = None
    ) -> Tensor:
        """Transform [B, L, D]."""
        x = x + self.attention(self.attention_norm(x), rotation, mask, kept)
        normed = self.mlp_norm(x)
        result: Tensor = x + self.down(silu(self.gate(normed)) * self.up(normed))
        return result


class Transformer(nn.Module):
    """Token ids in, logits for every position (or the rows asked for) out.

    >>> config = Config(vocab_size=50, width=16, layers=1, heads=2, kv_heads=1,
    ...                 mlp_width=32, max_length=8)
    >>> Transformer(config)(torch.zeros(1, 5, dtype=torch.int64)).shape
    torch.Size([1, 5, 50])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = Norm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        tokens: Tensor,
        attended: Tensor | None = None,
        rows: Tensor | None = None,
        cache: Cache | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [B, L, V], or [B, R, V] of the positions `rows` [B, R].

        `attended` [B, L] is False at padding, which no position then looks at. With a cache, only
        the positions `at` [P], one after the other, need be computed; the others stay as they were.
        """
        everywhere = torch.arange(tokens.shape[1], device=tokens.device)
        if at is None:
            at = everywhere
        elif self.config.shifted:  # the position before the first predicts it
            at = torch.cat([at[:1] - 1, at])
        rotation = rotary_angles(self.config, at)
        mask = None if attended is None else attended[:, None, None, :]
        x = self.embedding(tokens.index_select(1, at))
        for number, block in enumerate(self.blocks):
            x = block(x, rotation, mask, None if cache is None else Kept(cache, number, at))
        if self.config.shifted and rows is None:
            rows = everywhere.expand(tokens.shape)
        if rows is not None:
            source = (rows - 1).clamp(min=0) if self.config.shifted else rows
            source = source - at[0]
            x = x.gather(1, source[..., None].expand(-1, -1, x.shape[-1]))
        logits: Tensor = self.head(self.norm(x))
        return logits


def rotary_angles(config: Config, at: Tensor) -> Pair:
    """Return the cosines and sines [P, 1, head width] of the rotary embedding of positions [P].

    The sines of a head's first half are negative, as `rotate` needs them.
    """
    half = torch.arange(0, config.head_width, 2, device=at.device, dtype=torch.float32)
    frequencies = config.rope_theta ** (-half / config.head_width)
    angles = torch.outer(at.float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=-1)[:, None], torch.cat([-sin, sin], dim=-1)[:, None]


def rotate(x: Tensor, rotation: Pair) -> Tensor:
    """Turn each vector of [B, P, H, D] by its position's angles; the halves are its coordinates."""
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)
