"""One bidirectional transformer: all families are this with other numbers.

It is a LLaMA block (RMSNorm, rotary positions, SwiGLU) without a causal mask: every position sees
every other one, so the model can fill a mask anywhere from what stands on both sides of it. In a
block-causal model (LLaDA2, SDAR) it sees its own block and those before it.

Everything is written in torch. On a GPU, `fused.py` does the element-wise part in fewer kernels; on
a CPU, `packed.py` makes one layer of those with the same input (`qkv`, `gate_up`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from dllmark.gpu import has_triton
from dllmark.models.experts import Experts, Mixture


@dataclass(frozen=True)
class Config:
    """The numbers that make one model of the family.

    `shifted` is Dream's habit: the output at position j - 1 predicts the token at position j.
    `joint_qkv` is LLaDA2's: queries, keys and values are one matrix. `rotary_share` of a head's
    width is rotated. A `block_causal` model was trained with blocks of `block_length`, where known.
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
    head_dim: int = 0
    qk_norm: bool = False
    joint_qkv: bool = False
    rotary_share: float = 1.0
    block_causal: bool = False
    block_length: int = 0
    experts: Experts | None = None

    @property
    def head_width(self) -> int:
        """The width of one attention head."""
        return self.head_dim or self.width // self.heads


Pair = tuple[Tensor, Tensor]

_may_fuse = ContextVar("_may_fuse", default=True)


@contextmanager
def unfused() -> Iterator[None]:
    """Let torch do everything in this block, also on a GPU: that is what kernels are compared with.

    >>> with unfused():
    ...     pass  # logits = transformer(tokens)
    """
    before = _may_fuse.set(False)
    try:
        yield
    finally:
        _may_fuse.reset(before)


def fuses(*tensors: Tensor) -> bool:
    """Return whether the kernels take this work: on a GPU, in one number format, no gradient.

    `torch.compile` makes kernels of its own from what is written in torch.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not _may_fuse.get():
        return False
    if not all(tensor.is_cuda for tensor in tensors) or not has_triton():
        return False
    from dllmark.models import fused

    kinds = {tensor.dtype for tensor in tensors}
    return len(kinds) == 1 and kinds <= set(fused.DTYPES)


class Cache:
    """The keys and values [B, H, L, head width] of all positions, layer by layer.

    An approximation (Fast-dLLM): a position that is not computed again keeps the keys and values
    it had when it last was, though the text around it has changed.
    """

    def __init__(self, config: Config, tokens: Tensor, dtype: torch.dtype) -> None:
        batch, length = tokens.shape
        shape = (batch, config.kv_heads, length, config.head_width)

        def zeros() -> list[Tensor]:
            device = tokens.device
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]

        self.keys, self.values = zeros(), zeros()


@dataclass
class CachedLayer:
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

    def forward(self, x: Tensor, added: Tensor | None = None) -> Pair:
        """Return x + added, and that scaled to unit root mean square, then by learned weights."""
        if fuses(x, self.weight, x if added is None else added):
            from dllmark.models import fused

            return fused.norm(x, added, self.weight, self.eps)
        if added is not None:
            x = x + added
        return x, rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Attention(nn.Module):
    """Multi-head attention over all positions; several query heads may share a key head."""

    qkv: nn.Module  # only where queries, keys and values are one matrix

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        kv_width, width = (n * config.head_width for n in (config.kv_heads, config.heads))
        self.widths = [width, kv_width, kv_width]
        if config.joint_qkv:
            self.qkv = nn.Linear(config.width, sum(self.widths), bias=config.qkv_bias)
        else:
            self.query = nn.Linear(config.width, width, bias=config.qkv_bias)
            self.key = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
            self.value = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        if config.qk_norm:
            self.query_norm = Norm(config.head_width, config.norm_eps)
            self.key_norm = Norm(config.head_width, config.norm_eps)
        self.out = nn.Linear(width, config.width, bias=False)

    def forward(
        self, x: Tensor, rotation: Pair, mask: Tensor | None, cached: CachedLayer | None = None
    ) -> Tensor:
        """Mix the positions of [B, L, D]; what is `cached` of other positions takes part."""
        batch, length, _ = x.shape
        if hasattr(self, "qkv"):
            projected = self.qkv(x).split(self.widths, -1)
        else:
            projected = (self.query(x), self.key(x), self.value(x))
        query, key, value = (y.view(batch, length, -1, self.config.head_width) for y in projected)
        if self.config.qk_norm:
            _, query = self.query_norm(query.contiguous())
            _, key = self.key_norm(key.contiguous())
        turned = rotate(query, key, rotation)
        query, key, value = (y.transpose(1, 2) for y in (*turned, value))
        if cached is not None:
            key, value = cached.updated(key, value)
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

    gate_up: nn.Module  # only where both are one matrix

    def __init__(self, config: Config, number: int) -> None:
        super().__init__()
        self.attention_norm = Norm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = Norm(config.width, config.norm_eps)
        self.experts = None
        if config.experts is not None and number >= config.experts.first_layer:
            self.experts = Mixture(config.experts, config.width)
            return
        self.gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(
        self,
        x: Tensor,
        added: Tensor | None,
        rotation: Pair,
        mask: Tensor | None,
        cached: CachedLayer | None = None,
        needed: Tensor | None = None,
    ) -> Pair:
        """Return the stream [B, L, D] and what is to be added to it, from those of the last block.

        A sum waits for the norm that needs it: a GPU does both in one go. If only some positions
        [B, R] are `needed` after this block, only these are fed forward, and returned.
        """
        x, normed = self.attention_norm(x, added)
        mixed = self.attention(normed, rotation, mask, cached)
        if needed is not None:
            x, mixed = pick(x, needed), pick(mixed, needed)
        x, normed = self.mlp_norm(x, mixed)
        if self.experts is not None:
            return x, self.experts(normed)
        if hasattr(self, "gate_up"):
            gate, up = self.gate_up(normed).chunk(2, -1)
        else:
            gate, up = self.gate(normed), self.up(normed)
        return x, self.down(swiglu(gate, up))


class Transformer(nn.Module):
    """Token ids in, logits for every position (or for some) out.

    >>> config = Config(vocab_size=50, width=16, layers=1, heads=2, kv_heads=1,
    ...                 mlp_width=32, max_length=8)
    >>> Transformer(config)(torch.zeros(1, 5, dtype=torch.int64)).shape
    torch.Size([1, 5, 50])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        # nn.Embedding's own numbers, on the meta device, take seconds: they import torch's compiler
        numbers = torch.empty(config.vocab_size, config.width).uniform_(-1, 1)
        self.embedding = nn.Embedding(config.vocab_size, config.width, _weight=numbers)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.norm = Norm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        tokens: Tensor,
        attended: Tensor | None = None,
        logit_positions: Tensor | None = None,
        cache: Cache | None = None,
        at: Tensor | None = None,
        block_length: int = 0,
    ) -> Tensor:
        """Return the logits [B, L, V], or [B, R, V] of the `logit_positions` [B, R].

        `attended` [B, L] is False at padding, which no position then looks at. With a cache, only
        the positions `at` [P], one after the other, need be computed; the others stay as they were.
        With a `block_length` no position sees a later block; blocks count from the first position.
        """
        everywhere = torch.arange(tokens.shape[1], device=tokens.device)
        if at is None:
            at = everywhere
        elif self.config.shifted:  # the position before the first predicts it
            at = torch.cat([at[:1] - 1, at])
        rotation = rotary_angles(self.config, at)
        mask = None if attended is None else attended[:, None, None, :]
        if block_length:
            seen = everywhere // block_length <= at[:, None] // block_length
            mask = seen if mask is None else mask & seen
        if self.config.shifted:
            if logit_positions is None:
                logit_positions = everywhere.expand(tokens.shape)
            logit_positions = (logit_positions - 1).clamp(min=0)
        needed = None if logit_positions is None else logit_positions - at[0]
        x, added = self.embedding(tokens.index_select(1, at)), None
        for number, block in enumerate(self.blocks):
            cached = None if cache is None else CachedLayer(cache, number, at)
            last = number == len(self.blocks) - 1
            x, added = block(x, added, rotation, mask, cached, needed if last else None)
        _, normed = self.norm(x, added)
        logits: Tensor = self.head(normed)
        return logits


def pick(x: Tensor, positions: Tensor) -> Tensor:
    """Return the positions [B, R] of [B, L, D]."""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


def rotary_angles(config: Config, at: Tensor) -> Pair:
    """Return the cosines and sines [P, 1, width] of the rotary embedding of positions [P].

    The sines of a head's first half are negative, as `rotate` needs them.
    """
    width = int(config.head_width * config.rotary_share)
    half = torch.arange(0, width, 2, device=at.device, dtype=torch.float32)
    frequencies = config.rope_theta ** (-half / width)
    angles = torch.outer(at.float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=-1)[:, None], torch.cat([-sin, sin], dim=-1)[:, None]


def rotate(query: Tensor, key: Tensor, rotation: Pair) -> Pair:
    """Turn each vector of queries and keys [B, P, H, D] by its position's angles.

    Where there are angles for a part of the vector only, the rest stays as it is.
    """
    width = rotation[0].shape[-1]
    if width < query.shape[-1]:
        parts = [turn(x[..., :width], rotation) for x in (query, key)]
        query = torch.cat([parts[0], query[..., width:]], dim=-1)
        return query, torch.cat([parts[1], key[..., width:]], dim=-1)
    if fuses(query, key):
        from dllmark.models import fused

        return fused.rotate(query, key, *rotation)
    return turn(query, rotation), turn(key, rotation)


def turn(x: Tensor, rotation: Pair) -> Tensor:
    """Turn each vector of [B, P, H, D] by its position's angles; the halves are its coordinates."""
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return what goes through the gate."""
    if fuses(gate, up):
        from dllmark.models import fused

        return fused.swiglu(gate, up)
    return silu(gate) * up
