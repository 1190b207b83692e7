"""The parts of training/adapt.py, on a model of a few thousand weights."""

import argparse
import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

pytest.importorskip("gguf")

import adapt
import documents
import masking
import pretrained
import settle
from dllmark import load_model
from dllmark.models.chat_template import ChatTemplate
from dllmark.models.few_bits import expanded
from dllmark.models.transformer import Config, Transformer
from quantise import in_few_bits, pack, rounded

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo>", "<file>", "<issue>"]


@pytest.fixture
def whole():
    """A byte-level tokenizer of 300 ids that lacks the byte 4."""
    letters = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"Ą"} - pretrained.NEVER)
    words = ["Ġt", "he", "Ġthe", "in", "Ġa"]
    names = [*SPECIAL, *letters, *words]
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("Ġ", "a")]
    model = models.BPE(vocab={name: id_ for id_, name in enumerate(names)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return json.loads(tokenizer.to_str())


@pytest.fixture
def tokenizer_file(whole, tmp_path):
    """The first ids of it, all merges but the last two kept."""
    path = tmp_path / "tokenizer.json"
    size = len(whole["model"]["vocab"]) - 2
    path.write_text(json.dumps(pretrained.cut(whole, size)))
    return path


@pytest.fixture
def gguf_file(tmp_path):
    """A llama of two blocks, as such files hold one; and the queries of its first block."""
    from gguf import GGUFWriter

    random = np.random.default_rng(0)
    writer = GGUFWriter(tmp_path / "tiny.gguf", "llama")
    for add, value in (
        (writer.add_context_length, 1024), (writer.add_embedding_length, 64),
        (writer.add_block_count, 2), (writer.add_feed_forward_length, 96),
        (writer.add_head_count, 2), (writer.add_head_count_kv, 1),
        (writer.add_rope_freq_base, 100_000.0), (writer.add_layer_norm_rms_eps, 1e-5),
    ):  # fmt: skip
        add(value)
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
              "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}  # fmt: skip
    names = {"token_embd": (384, 64), "output_norm": (64,)}
    for block in range(2):
        names |= {f"blk.{block}.{name}": shape for name, shape in shapes.items()}
        names |= {f"blk.{block}.{name}_norm": (64,) for name in ("attn", "ffn")}
    tensors = {name: random.normal(0, 0.1, shape) for name, shape in names.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "tiny.gguf", tensors["blk.0.attn_q"].astype(np.float32)


def test_a_cut_tokenizer_writes_every_text(tokenizer_file):
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    text = "<|im_start|>in the\x04 é <|mask|>"
    encoded = tokenizer.encode(text)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
    assert tokenizer.token_to_id("<|mask|>") == SPECIAL.index("<repo>")
    assert tokenizer.token_to_id("Ą") == SPECIAL.index("<file>")
    assert "Ġthe" in encoded.tokens and "in" not in encoded.tokens  # that merge was cut


def test_heads_of_a_llama_are_read_in_halves(gguf_file):
    path, query = gguf_file
    config = pretrained.numbers(path, 384)
    found = pretrained.weights(path, config, mask=3)
    first = found["blocks.0.attention.query.weight"][:32].numpy()
    assert np.array_equal(first[:16], query[0:32:2])
    assert np.array_equal(first[16:], query[1:32:2])
    assert not found["blocks.1.attention.key.bias"].any()
    assert (config.kv_heads, config.tied_head, config.shifted) == (1, True, True)


@pytest.mark.parametrize("bits", [4, 8])
def test_few_bits_are_few_and_close(bits):
    torch.manual_seed(0)
    weight = torch.randn(8, 64)
    few = rounded(weight, bits)
    groups = few.unflatten(-1, (-1, 32))
    assert max(len(group.unique()) for group in groups.flatten(0, 1)) <= 2**bits
    assert (few - weight).abs().max() <= weight.abs().max() / 2 ** (bits - 1) * 1.01
    assert torch.allclose(rounded(few, bits), few, atol=1e-6)
    assert not rounded(torch.zeros(1, 32), bits).any()


@pytest.fixture
def packed(tokenizer_file, tmp_path, monkeypatch):
    """A folder of packed chats."""
    rows = [{"prompt": "in the", "text": "a the in. " * 20} for _ in range(120)]
    corpus = tmp_path / "teacher.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed = tmp_path / "packed"
    arguments = [corpus, "--tokenizer", tokenizer_file, "--out", packed]
    monkeypatch.setattr(sys, "argv", ["documents.py", *map(str, arguments)])
    documents.main()
    return packed


@pytest.fixture
def options(packed, gguf_file, tokenizer_file, tmp_path):
    """What a command line of adapt.py says."""
    return argparse.Namespace(
        packed=packed, start=gguf_file[0], tokenizer=tokenizer_file, out=tmp_path / "run",
        batch=2, held_out=2, rate=1e-3, few_bits_from=0.0, rank=0, adapter=None,
    )  # fmt: skip


def test_the_whole_way_on_a_cpu(options, tmp_path, monkeypatch):
    run = adapt.Run(options)
    before = run.model.blocks[0].gate.weight.clone()
    losses = [run.learn(0.5).item() for _ in range(2)]
    run.finish(0.0)
    assert np.isfinite(losses).all()
    assert not torch.equal(before, run.model.blocks[0].gate.weight)
    again = adapt.Run(options)
    assert again.step == 2
    assert torch.equal(again.model.blocks[0].gate.weight, run.model.blocks[0].gate.weight)
    with in_few_bits(again.model):
        assert not torch.equal(again.model.blocks[0].gate.weight, run.model.blocks[0].gate.weight)
    assert torch.equal(again.model.blocks[0].gate.weight, run.model.blocks[0].gate.weight)
    options.start, options.out = tmp_path / "run" / "model", tmp_path / "next"
    onward = adapt.Run(options)
    onward.learn(0.5)
    assert onward.step == 1
    model = load_model(str(tmp_path / "run" / "model"), device="cpu", dtype="float32")
    assert (model.family.name, model.mask_id, model.end_ids) == ("Dream", 3, (0, 2))
    monkeypatch.setattr(settle, "LENGTH", 64)
    options.weight, options.shortest, options.tokenizer = 0.3, 10, None
    settle.settle(settle.Settling(options), seconds=0.01)
    again = load_model(str(tmp_path / "next"), device="cpu", dtype="float32")
    assert not torch.equal(
        again.transformer.blocks[0].gate.weight, model.transformer.blocks[0].gate.weight
    )
    lines = (tmp_path / "next" / "log.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines]
    assert log[0]["degenerate"] >= 0
    assert log[-1]["name"] == "mixed"


def test_a_folder_says_how_its_model_was_taught_to_chat():
    template = ChatTemplate(pretrained.CHAT_TEMPLATE)
    assert template.conversation([("user", "Why?")]) == documents.CHAT.chat("Why?")


def test_adapters_alone_are_learned_and_merge_into_a_folder(options, tmp_path):
    options.rank, options.few_bits_from = 4, 2.0
    run = adapt.Run(options)
    frozen = {name: part.clone() for name, part in run.model.named_parameters()
              if not part.requires_grad}  # fmt: skip
    tokens = torch.randint(20, 200, (2, 16))
    tokens[:, ::3] = run.reader.mask
    plain = run.model(tokens)
    for _ in range(3):
        run.learn(0.5)
    after = dict(run.model.named_parameters())
    assert all(torch.equal(part, after[name]) for name, part in frozen.items())
    learned = run.model(tokens)
    assert (learned - plain).abs().max() > 1e-3
    again = adapt.Run(argparse.Namespace(**vars(options)))
    assert again.step == 0
    run.finish(0.0)
    assert adapt.Run(options).step == 3
    merged = load_model(str(options.out / "model"), device="cpu", dtype="float32").transformer
    assert torch.allclose(merged(tokens), learned, atol=0.02)
    kept = load_file(options.out / "adapter.safetensors")
    parts = {name.removesuffix(".scale").rpartition(".")[2] for name in kept}
    assert parts == {"down", "up", "row"}
    assert all(kept[name].dtype == torch.int8 for name in kept if not name.endswith(".scale"))
    options.adapter, options.out, options.held_out = (
        options.out / "adapter.safetensors", tmp_path / "merged", 0,
    )  # fmt: skip
    options.packed = tmp_path / "nothing is needed to merge"
    adapt.train(adapt.Run(options), total=0.0, now=0.0, every=1.0)
    again = load_model(str(tmp_path / "merged" / "model"), device="cpu", dtype="float32")
    assert torch.allclose(again.transformer(tokens), learned, atol=0.02)
    options.rank = 2
    with pytest.raises(SystemExit, match="give its own --rank"):
        adapt.Run(options)


def test_adapters_settle_too(options, tmp_path, monkeypatch):
    monkeypatch.setattr(settle, "LENGTH", 64)
    options.rank, options.few_bits_from = 4, 2.0
    run = adapt.Run(options)
    run.learn(0.5)
    run.finish(0.0)
    options.adapter, options.out = options.out / "adapter.safetensors", tmp_path / "settled"
    options.weight, options.shortest = 0.3, 10
    before = load_file(options.adapter)
    settle.settle(settle.Settling(options), seconds=0.01)
    after = load_file(options.out / "adapter.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    texts = (options.out / "samples.jsonl").read_text().splitlines()
    assert json.loads(texts[0])["step"] == 0
    tokens = torch.randint(20, 200, (2, 16))
    options.adapter, options.out = options.out / "adapter.safetensors", tmp_path / "merged"
    learned = adapt.Run(options).model
    folder = load_model(str(tmp_path / "settled"), device="cpu", dtype="float32")
    assert torch.allclose(folder.transformer(tokens), learned(tokens), atol=0.02)


def test_merged_weights_do_what_the_model_with_its_adapters_does(options):
    options.rank, options.few_bits_from = 4, 2.0
    run = adapt.Run(options)
    run.learn(0.5)
    plain = Transformer(run.model.config)
    tokens = torch.randint(20, 200, (2, 16))
    tokens[:, ::3] = run.reader.mask
    before = run.model(tokens)
    plain.load_state_dict(adapt.lora.merged(run.model))
    others = torch.arange(before.shape[-1]) != run.reader.mask  # which no sampler writes
    assert torch.allclose(plain(tokens)[..., others], before[..., others], atol=1e-4)
    assert torch.equal(run.model(tokens), before)


def test_a_step_taken_in_parts_is_the_same_step(options, tmp_path, monkeypatch):
    options.batch = 12
    whole = adapt.Run(options)
    loss = whole.learn(0.5)
    options.out = tmp_path / "other"
    monkeypatch.setattr(adapt, "LOGITS_AT_ONCE", 384 * 600)  # rows of two
    calls, parts = [], adapt.Run(options)
    weigh = parts.weigh
    monkeypatch.setattr(parts, "weigh", lambda *some: calls.append(1) or weigh(*some))
    assert torch.allclose(parts.learn(0.5), loss, rtol=1e-4)
    assert len(calls) > len(adapt.BATCH)
    weight = whole.model.blocks[0].gate.weight
    assert torch.allclose(parts.model.blocks[0].gate.weight, weight, atol=1e-4)


def test_copies_become_less_likely():
    torch.manual_seed(0)
    ordinary = torch.arange(24) >= 4
    model = Transformer(Config(vocab_size=24, width=32, layers=1, heads=2, kv_heads=2,
                               mlp_width=32, max_length=64))  # fmt: skip
    tokens = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7, 8, 10, 11, 12]])
    texts = settle.Texts(tokens, torch.arange(-1, 11).clamp(min=0)[None], 11)

    def likely():
        with torch.no_grad():
            state = torch.where(torch.arange(12) < 6, tokens, 3)
            return model(state).softmax(-1)[0].gather(1, tokens[0, :, None])[:, 0]

    before, random = likely(), torch.Generator().manual_seed(0)
    moved = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(60):
        settle.loss_of_copies(model, texts, random, 3, ordinary).backward()
        moved.step()
        moved.zero_grad()
    assert (likely()[6:9] < before[6:9]).all()


def test_a_doubled_word_becomes_less_likely_where_it_was_less_likely():
    tokens = torch.tensor([[20, 20, 30, 40, 40]])
    coming = torch.tensor([[True, True, True, False, True]])
    said = torch.tensor([[-2.0, -1.0, 0.0, 0.0, -3.0]])
    assert settle.doubled(tokens, coming, said).tolist() == [[True, False, False, False, False]]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_row_masked_as_sampled_is_whole_before_its_block_and_empty_after_it(seed):
    random = torch.Generator().manual_seed(seed)
    tokens = torch.arange(100, 196).repeat(5, 1)
    size, prompt = torch.full((5, 1), 90), torch.full((5, 1), 10)
    noisy, weight = masking.as_sampled(tokens, size, prompt, random, 3)
    assert torch.equal(noisy == 3, weight > 0)
    later = weight == np.float32(masking.LATER_WEIGHT)
    for row in range(5):
        start = 96 - int(later[row].sum()) - masking.BLOCK
        assert not weight[row, : max(start, 10)].any()
        assert later[row, start + masking.BLOCK :].all()


def test_packed_weights_are_the_rounded_ones_in_few_bytes(tmp_path):
    torch.manual_seed(0)
    weights = {"model.embed_tokens.weight": torch.randn(96, 64), "norm": torch.randn(64)}
    weights["model.layers.0.up"] = torch.randn(512, 512)
    save_file(weights, tmp_path / "model.safetensors")
    pack(tmp_path, tmp_path / "packed.safetensors")
    few = load_file(tmp_path / "packed.safetensors")
    assert few.keys() == weights.keys() | {f"{name}.scale" for name in weights if name != "norm"}
    assert torch.equal(few["norm"], weights["norm"].bfloat16())
    for name, bits in (("model.embed_tokens.weight", 8), ("model.layers.0.up", 4)):
        again = expanded(few[name], few[f"{name}.scale"])
        assert torch.equal(again, rounded(weights[name], bits))
    assert (tmp_path / "packed.safetensors").stat().st_size < (512 * 512 * 5 + 96 * 64 * 10) / 8
