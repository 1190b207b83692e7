"""LLaDA2 and SDAR give the logits that `transformers` gives for the same arithmetic by other names.

LLaDA2's layer is that of GLM-4.5 (Glm4Moe): grouped experts chosen by sigmoids, a shared expert,
half of a head rotated, queries and keys normed. SDAR's is Qwen3's. Both here with a mask that hides
later blocks.
"""

import json

import pytest
import torch
import transformers
from checkpoints import ORDINARY, llada2_config, sdar_config, write_checkpoint, write_weights

from dllmark.errors import ModelError
from dllmark.models.families import LLADA2, SDAR
from dllmark.models.loading import load_model
from dllmark.models.transformer import Cache

BLOCK = 4
TOKENS = torch.randint(0, 300, (1, 11), generator=torch.Generator().manual_seed(1))
CONFIGS = {
    "llada2": llada2_config(),
    "llada2, one group, all of the head rotated": llada2_config(
        n_group=1, topk_group=1, partial_rotary_factor=1.0, num_experts_per_tok=2
    ),
    "llada2, three dense layers' worth of shared experts": llada2_config(
        num_shared_experts=3, first_k_dense_replace=2, num_key_value_heads=4, rms_norm_eps=0.01
    ),
    "sdar": sdar_config(),
    "sdar, a key for each head": sdar_config(num_key_value_heads=4, rope_theta=10_000.0),
}


def glm(config, weights):
    """Build the GLM-4.5 that has the weights of a LLaDA2."""
    width = config["head_dim"]
    settings = transformers.Glm4MoeConfig(
        n_routed_experts=config["num_experts"],
        n_shared_experts=config["num_shared_experts"],
        use_qk_norm=True,
        num_nextn_predict_layers=0,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config["rope_theta"],
            "partial_rotary_factor": config["partial_rotary_factor"],
        },
        **{
            name: config[name]
            for name in (
                "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
                "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "topk_group",
                "moe_intermediate_size", "num_experts_per_tok", "routed_scaling_factor", "n_group",
                "first_k_dense_replace", "norm_topk_prob", "tie_word_embeddings",
            )
        },
    )  # fmt: skip
    heads, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    given = {}
    for name, tensor in weights.items():
        name = name.replace("word_embeddings", "embed_tokens").replace(".attention.", ".self_attn.")
        name = name.replace("dense", "o_proj").replace("expert_bias", "e_score_correction_bias")
        name = name.replace("query_layernorm", "q_norm").replace("key_layernorm", "k_norm")
        if "query_key_value" in name:
            parts = zip("qkv", tensor.split([heads, keys, keys]), strict=True)
            given |= {name.replace("query_key_value", f"{p}_proj"): t for p, t in parts}
        else:
            given[name] = tensor
    for layer in range(config["first_k_dense_replace"], config["num_hidden_layers"]):
        stem = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([given.pop(f"{stem}.{e}.{part}_proj.weight")
                         for e in range(config["num_experts"])])
            for part in ("gate", "up", "down")
        )  # fmt: skip
        given[f"{stem}.gate_up_proj"], given[f"{stem}.down_proj"] = torch.cat([gate, up], 1), down
    model = transformers.Glm4MoeForCausalLM(settings)
    model.load_state_dict(given)
    return model.eval()


def qwen(config, weights):
    """Build the Qwen3 that has the weights of an SDAR."""
    names = set(config) - {"model_type", "architectures", "auto_map", "rope_theta", "rope_scaling"}
    settings = transformers.Qwen3Config(
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        **{name: config[name] for name in names},
    )
    model = transformers.Qwen3ForCausalLM(settings)
    model.load_state_dict(weights)
    return model.eval()


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def pair(request, tmp_path_factory):
    """Our model, and that of `transformers` with the same weights."""
    folder = tmp_path_factory.mktemp("model")
    config = request.param
    weights = write_checkpoint(folder, config)
    build = glm if config["model_type"] == "llada2_moe" else qwen
    return load_model(str(folder), device="cpu").transformer, build(config, weights)


@torch.inference_mode()
def test_logits_are_those_of_transformers_with_later_blocks_hidden(pair):
    ours, theirs = pair
    numbers = torch.arange(TOKENS.shape[1]) // BLOCK
    hidden = torch.zeros(1, 1, len(numbers), len(numbers))
    hidden[0, 0, numbers[None, :] > numbers[:, None]] = -torch.inf
    expected = theirs(TOKENS, attention_mask=hidden).logits
    torch.testing.assert_close(ours(TOKENS, block_length=BLOCK), expected, atol=1e-4, rtol=0)
    assert (ours(TOKENS) - expected).abs().max() > 0.01  # the mask matters


@torch.inference_mode()
def test_a_block_sees_itself_and_what_stands_before_it_and_no_later_one(pair):
    ours, _ = pair
    other = TOKENS.clone()
    other[0, 6] += 1  # in the second block
    changed = (ours(TOKENS, block_length=BLOCK) - ours(other, block_length=BLOCK)).abs().amax(-1)
    assert (changed[0, :4] == 0).all()
    assert (changed[0, 4:] > 1e-4).all()


@torch.inference_mode()
def test_what_is_kept_of_earlier_blocks_gives_the_same_logits(pair):
    ours, _ = pair
    whole = ours(TOKENS, block_length=BLOCK)
    cache = Cache(ours.config, TOKENS, torch.float32)
    ours(TOKENS, None, None, cache, torch.arange(8), BLOCK)
    rest = torch.arange(8, 11)
    logits = ours(TOKENS, None, rest[None], cache, rest, BLOCK)
    torch.testing.assert_close(logits, whole[:, 8:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_weight_of_llada2_arrives(tmp_path, shards, dtype):
    weights = write_checkpoint(tmp_path, llada2_config(), shards)
    transformer = load_model(str(tmp_path), device="cpu", dtype=dtype).transformer
    block = transformer.blocks[2]
    for expert in range(8):
        given = weights[f"model.layers.2.mlp.experts.{expert}.down_proj.weight"]
        assert torch.equal(block.experts.down[expert], given.to(getattr(torch, dtype)))
    assert {p.dtype for p in transformer.parameters()} == {getattr(torch, dtype)}
    assert not any(p.requires_grad for p in transformer.parameters())
    assert sum(p.numel() for p in transformer.parameters()) == sum(
        tensor.numel() for tensor in weights.values()
    )


def test_their_models_know_their_tokens(tmp_path):
    write_checkpoint(tmp_path, llada2_config())
    model = load_model(str(tmp_path))
    assert (model.family, model.mask_id) == (LLADA2, ORDINARY + 2)
    assert model.end_ids == (ORDINARY + 1, ORDINARY + 3)
    assert model.chat("Hi") == (
        "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>Hi<|role_end|>"
        "<role>ASSISTANT</role>"
    )
    write_checkpoint(tmp_path, sdar_config())
    model = load_model(str(tmp_path))
    assert (model.family, model.mask_id) == (SDAR, ORDINARY + 3)
    assert model.config.block_length == 16
    assert model.chat("Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": "absent"}, "gives no num_experts, or not a number: LLaDA2 needs it"),
        ({"num_experts": 8.5}, "gives no num_experts, or not a number"),
        ({"n_group": 3}, "8 experts in 3 groups, 2 of them chosen: groups are equally large"),
        ({"topk_group": 5}, "8 experts in 4 groups, 5 of them chosen"),
        ({"n_group": 0}, "8 experts in 0 groups"),
        ({"num_experts_per_tok": 5}, "5 experts of 4 in reach are chosen"),
        ({"num_experts_per_tok": 1}, "a token takes at least 2"),
        ({"score_function": "softmax"}, "says score_function softmax"),
        ({"norm_topk_prob": False}, "says norm_topk_prob False"),
        ({"use_qk_norm": False}, "says use_qk_norm False"),
        ({"use_bias": True}, "says use_bias True"),
        ({"norm_head": True}, "says norm_head True"),
        ({"num_experts": 16}, r"lack model.layers.1.mlp.*\(\d+ tensors missing\)|misshapen"),
        ({"first_k_dense_replace": 2}, r"lack model.layers.1.mlp"),
    ],
)
def test_a_mixture_that_we_do_not_compute_is_refused(tmp_path, changes, message):
    write_checkpoint(tmp_path, llada2_config())
    config = {k: v for k, v in (llada2_config() | changes).items() if v != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load_model(str(tmp_path))


def test_an_expert_that_is_missing_is_named(tmp_path):
    weights = write_checkpoint(tmp_path, llada2_config())
    name = "model.layers.2.mlp.experts.5.up_proj.weight"
    del weights[name]
    write_weights(tmp_path, weights)
    with pytest.raises(ModelError, match=rf"lack {name} \(1 tensors missing\)"):
        load_model(str(tmp_path))
