"""A judge in a GGUF file gives what the same weights give without it."""

import importlib.util
import math

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

from dllmark.errors import DllmarkError, ModelError
from dllmark.quality.perplexity import load_judge, perplexities

pytest.importorskip("gguf")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.usefixtures("one_core")

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = [*LETTERS, "th", "the", "<|endoftext|>"]
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def their_name(ours):
    """The name of a weight of Qwen2 in a GGUF file."""
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if ours in fixed:
        return fixed[ours]
    _, _, layer, *part, kind = ours.split(".")
    return f"blk.{layer}.{NAMES['.'.join(part)]}.{kind}"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
        tie_word_embeddings=False,
    )  # fmt: skip
    made = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight) * 0.5)
    return made


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    from gguf import GGUFWriter, TokenType

    path = tmp_path_factory.mktemp("judge") / "tiny.gguf"
    writer = GGUFWriter(path, "qwen2")
    for add, value in (
        (writer.add_context_length, 128), (writer.add_embedding_length, 32),
        (writer.add_block_count, 2), (writer.add_feed_forward_length, 64),
        (writer.add_head_count, 2), (writer.add_head_count_kv, 1),
        (writer.add_rope_freq_base, 10_000.0), (writer.add_layer_norm_rms_eps, 1e-6),
        (writer.add_tokenizer_model, "gpt2"), (writer.add_tokenizer_pre, "qwen2"),
        (writer.add_token_list, WORDS), (writer.add_token_merges, ["t h", "th e"]),
        (writer.add_token_types, [TokenType.NORMAL] * (len(WORDS) - 1) + [TokenType.CONTROL]),
        (writer.add_eos_token_id, len(WORDS) - 1), (writer.add_bos_token_id, len(WORDS) - 1),
    ):  # fmt: skip
        add(value)
    for name, weight in model.state_dict().items():
        writer.add_tensor(their_name(name), weight.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_judge_in_a_file_gives_what_its_weights_give(model, file):
    judge = load_judge(str(file))
    prompt, text = "the cat", " sat on the mat"
    before, after = (judge.tokenizer(one, add_special_tokens=False).input_ids
                     for one in (prompt, text))  # fmt: skip
    assert WORDS.index("the") in before
    total, known = 0.0, [*before]
    for token in after:
        with torch.no_grad():
            logits = model(torch.tensor([known])).logits[0, -1].double()
        total -= float(logits.log_softmax(0)[token])
        known.append(token)
    expected = math.exp(total / len(after))
    assert perplexities(judge, [(prompt, text)]) == pytest.approx([expected], rel=1e-4)
    assert expected > 2 * len(WORDS)  # the model is not flat, so a mix-up of weights would show


def test_a_file_that_is_not_there_or_no_gguf_is_told(tmp_path):
    with pytest.raises(ModelError, match=r"none.gguf \(there is no such file\): give `smollm2`"):
        load_judge(str(tmp_path / "none.gguf"))
    (tmp_path / "bad.gguf").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"cannot load the judge .*bad.gguf"):
        load_judge(str(tmp_path / "bad.gguf"))


def test_what_reads_such_a_file_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "judge.gguf").write_bytes(b"")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name)
    )
    with pytest.raises(DllmarkError, match=r"needs gguf: pip install 'dllmark\[eval\]'"):
        load_judge(str(tmp_path / "judge.gguf"))
