"""States of generation on which the kernels and the torch path must agree, bit for bit.

`test_kernels.py` runs them in Triton's interpreter, `gpu.py` on a GPU whose machine may have no
more than torch, triton and tokenizers.
"""

import functools
import json
import os

import torch

from dllmark.marking.watermark import Watermark
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.relation.tokenizer import Tokenizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks at it when a kernel is defined
try:
    import triton
    import triton.language as tl

    from dllmark.marking import kernel_hash, kernels  # noqa: F401 - for tests to import from here

    @triton.jit
    def _hash(words, messages, hashes, count: tl.constexpr, block: tl.constexpr):
        place = tl.arange(0, block)
        message = tl.load(messages + place, mask=place < count).to(tl.uint64, bitcast=True)
        v0, v1 = kernel_hash.word(words, 0), kernel_hash.word(words, 1)
        v2, v3 = kernel_hash.word(words, 2), kernel_hash.word(words, 3)
        hashed = kernel_hash.siphash(v0, v1, v2, v3, message).to(tl.int64, bitcast=True)
        tl.store(hashes + place, hashed, mask=place < count)
finally:
    os.environ.pop("TRITON_INTERPRET", None)  # dllmark looks at it in each call

VOCABULARY = 77  # five ids more than the tokenizer has tokens, and no multiple of a block
TOKENS = 72
PAD, END, MASK = 0, 1, 2
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BY_PREDICTION = ("predictive-bidirectional", "expected-bidirectional")  # each kind of prediction


@functools.cache
def make_tokenizer(size=TOKENS):
    """A tokenizer of so many words, of which the first three and the tenth are special."""
    words = [f"w{number}" for number in range(size)]
    definition = {
        "version": "1.0",
        "added_tokens": [
            {"id": id_, "content": words[id_], "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
            for id_ in (PAD, END, MASK, 9)
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: id_ for id_, word in enumerate(words)},
            "unk_token": words[0],
        },
    }  # fmt: skip
    return Tokenizer(json.dumps(definition), f"{size} words")


def make_watermark(strategy, size=TOKENS, *, gamma=0.4, delta=1.7, top_k=3):
    tokenizer = make_tokenizer(size)
    key = WatermarkKey(Secret(b"\xffsixteen bytes\x80\x01"), gamma, tokenizer.id)
    return Watermark(key, strategy, delta, top_k=top_k, tokenizer=tokenizer)


def borders(dtype, size=VOCABULARY, seed=0):
    """Both ends of a sequence, beside padding, special, known, doubled and unknown tokens."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(10, TOKENS, (4, 6), generator=rng)
    tokens[1, :2], tokens[2, :2], tokens[2, 3] = PAD, 33, END
    revealed = torch.tensor([[0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0],
                             [0, 0, 1, 0, 0, 1]]) == 1  # fmt: skip
    tokens[~revealed] = MASK
    logits = (3 * torch.randn(4, 6, size, generator=rng)).to(dtype)
    positions = torch.tensor([[0, 5], [2, 4], [2, -1], [1, 3]])
    return tokens, revealed, logits, positions, None


def some_positions(dtype):
    """Logits in any order, of some neighbours not, and one row that belongs to nothing."""
    tokens, revealed, logits, positions, _ = borders(dtype)
    covered = torch.tensor([[4, 5, 0, -1], [3, 2, 4, 0], [2, 4, 0, 5], [5, 3, 1, 0]])
    few = logits[torch.arange(4)[:, None], covered.clamp(min=0)]
    return tokens, revealed, few, positions, covered


def ties(dtype):
    """Many tokens share the first places, some as 0 and some as -0."""
    tokens, revealed, logits, positions, covered = borders(dtype)
    return tokens, revealed, (logits / 4).round().clamp(max=0), positions, covered


def infinities(dtype):
    """What a sampler forbids is -inf, up to a row with one token left, and one with none."""
    tokens, revealed, logits, positions, covered = borders(dtype)
    logits[..., MASK] = logits[..., TOKENS:] = -torch.inf
    logits[0, 1, :] = -torch.inf
    logits[0, 1, 40] = -3.0
    logits[0, 4, :] = -torch.inf
    logits[3, 4, 1:] = -torch.inf
    return tokens, revealed, logits, positions, covered


def no_numbers(dtype):
    """Overflow of a model: infinite logits and NaN; nothing hangs, and both paths agree."""
    tokens, revealed, logits, positions, covered = borders(dtype)
    logits[0, 1, 50:52] = torch.inf
    integers(logits)[0, 4, 33] = -1  # NaN with a sign
    logits[1, 3, :] = torch.nan
    logits[3, 1, 20] = torch.nan
    return tokens, revealed, logits, positions, covered


def views(dtype):
    """Tensors as slices leave them: other strides, expanded positions, 32-bit integers."""
    tokens, revealed, logits, positions, _ = borders(dtype)
    wide = torch.stack([logits, logits + 1], dim=2).flatten(1, 2)[:, ::2]
    covered = torch.arange(6, dtype=torch.int32).expand(4, -1)
    return (
        tokens.int().T.contiguous().T,
        revealed.repeat_interleave(2, dim=1)[:, ::2],
        wide[:, :6],
        positions.int()[:, :1],
        covered,
    )


def transposed(dtype):
    """Logits whose vocabulary is not their last dimension in memory."""
    tokens, revealed, logits, positions, covered = borders(dtype)
    return tokens, revealed, logits.transpose(1, 2).contiguous().transpose(1, 2), positions, covered


def nothing_to_fill(dtype):
    tokens, revealed, logits, positions, covered = borders(dtype)
    return tokens, revealed, logits, positions[:, :0], covered


def hash_by_kernel(key, messages):
    """The kernels' hash of 64-bit messages, an int64 tensor."""
    hashes, count = torch.empty_like(messages), len(messages)
    words = kernel_hash.DeviceKey(key, messages.device).reveal()
    _hash[(1,)](words, messages, hashes, count, triton.next_power_of_2(count))
    return hashes


STATES = (borders, some_positions, ties, infinities, no_numbers, views, transposed, nothing_to_fill)


def to(device, state):
    """Move a state to a device with its strides."""
    return tuple(None if tensor is None else tensor.to(device) for tensor in state)


def integers(tensor):
    """The same bits as integers."""
    return tensor.view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def same_bits(one, other):
    """Whether two tensors are equal to the bit, whatever the bits of NaN."""
    one, other = one.cpu(), other.cpu()
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    equal = integers(one.contiguous()) == integers(other.contiguous())
    return bool((equal | (one.isnan() & other.isnan())).all())


def graph_follows_its_inputs(watermark):
    """Capture a call in a CUDA graph, change what it reads, and compare what a replay gives."""
    places = to("cuda", some_positions(torch.bfloat16))
    watermark.bias(*places)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        biased = watermark.bias(*places)
    for seed in range(3):
        rng = torch.Generator().manual_seed(seed)
        state = some_positions(torch.bfloat16)
        state[0][:] = torch.randint(0, 8, state[0].shape, generator=rng)  # pairs come again
        state[1][:] = torch.rand(state[1].shape, generator=rng) < 0.5
        state[2][:] = torch.randn(state[2].shape, generator=rng)
        state[3][:] = state[4][:, torch.randperm(3, generator=rng)[:2]]
        for place, tensor in zip(places, state, strict=True):
            place.copy_(tensor)
        graph.replay()
        assert same_bits(biased, watermark.bias(*state)), watermark.strategy.name
