"""The transformer gives the logits that `transformers` gives with the same weights, seen both ways.

LLaDA's layout is compared with LLaMA and Dream's with Qwen2, both without their causal mask.
"""

import pytest
import torch
import transformers
from checkpoints import dream_config, llada_config, llama_name, write_checkpoint

from dllmark.models.loading import load_model
from dllmark.models.transformer import Config, Transformer

CONFIGS = {
    "llada": llada_config(),
    "llada, shared keys and another rotation": llada_config(n_kv_heads=1, rope_theta=10_000.0),
    "llada, tied head and large epsilon": llada_config(weight_tying=True, rms_norm_eps=0.01),
    "dream": dream_config(),
    "dream, a key for each head": dream_config(num_key_value_heads=4, rope_theta=10_000.0),
    "dream, tied head and large epsilon": dream_config(tie_word_embeddings=True, rms_norm_eps=0.01),
}

TOKENS = torch.randint(0, 320, (2, 9), generator=torch.Generator().manual_seed(1))


def reference(config, weights):
    """Build the model of `transformers` that has these weights."""
    if config["model_type"] == "llada":
        settings = transformers.LlamaConfig(
            vocab_size=config["embedding_size"],
            hidden_size=config["d_model"],
            intermediate_size=config["mlp_hidden_size"],
            num_hidden_layers=config["n_layers"],
            num_attention_heads=config["n_heads"],
            num_key_value_heads=config["n_kv_heads"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_theta=config["rope_theta"],
            tie_word_embeddings=config["weight_tying"],
        )
        model = transformers.LlamaForCausalLM(settings)
        weights = {llama_name(name): tensor for name, tensor in weights.items()}
    else:
        names = set(config) - {"model_type", "architectures", "auto_map"}
        settings = transformers.Qwen2Config(**{name: config[name] for name in names})
        model = transformers.Qwen2ForCausalLM(settings)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if settings.tie_word_embeddings else [])
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def both_ways(model, tokens):
    """Return the logits of a model of `transformers` with an attention mask that hides nothing."""
    length = tokens.shape[1]
    nothing_hidden = torch.zeros(len(tokens), 1, length, length)
    return model(tokens, attention_mask=nothing_hidden).logits


def shifted(logits, config):
    """Move the rows as Dream does, where the row before a token predicts it."""
    if config["model_type"] == "llada":
        return logits
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def pair(request, tmp_path_factory):
    """Our model, that of `transformers` with the same weights, and their config.json."""
    folder = tmp_path_factory.mktemp("model")
    weights = write_checkpoint(folder, request.param)
    ours = load_model(str(folder), device="cpu").transformer
    return ours, reference(request.param, weights), request.param


def other_end(tokens):
    """Return the tokens with another one at the end of each row."""
    return torch.cat([tokens[:, :-1], (tokens[:, -1:] + 1) % 320], dim=1)


def test_the_reference_sees_both_ways(pair):
    _, theirs, _ = pair
    changed = both_ways(theirs, TOKENS) - both_ways(theirs, other_end(TOKENS))
    assert (changed[:, 0].abs().amax(dim=-1) > 0.001).all()


@torch.inference_mode()
def test_logits_are_those_of_transformers_under_full_attention(pair):
    ours, theirs, config = pair
    expected = shifted(both_ways(theirs, TOKENS), config)
    torch.testing.assert_close(ours(TOKENS), expected, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_every_position_sees_every_other(pair):
    ours, _, _ = pair
    changed = ours(TOKENS) - ours(other_end(TOKENS))
    assert (changed.abs().amax(dim=-1) > 0.001).all()


@torch.inference_mode()
@pytest.mark.parametrize("pair", [dream_config()], indirect=True, ids=["dream"])
def test_a_row_of_dream_is_the_one_before_and_the_first_stays(pair):
    ours, theirs, _ = pair
    unshifted = both_ways(theirs, TOKENS)
    torch.testing.assert_close(ours(TOKENS)[:, 0], unshifted[:, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(ours(TOKENS)[:, 5], unshifted[:, 4], atol=1e-4, rtol=0)
    assert (ours(TOKENS)[:, 5] - unshifted[:, 5]).abs().max() > 0.1


@torch.inference_mode()
@pytest.mark.parametrize("padding", [1, 4])
def test_left_padding_does_not_change_the_logits(pair, padding):
    ours, _, config = pair
    padded = torch.nn.functional.pad(TOKENS[:1, padding:], (padding, 0), value=7)
    batch = torch.cat([padded, TOKENS[1:]])
    attended = torch.ones(batch.shape, dtype=torch.bool)
    attended[0, :padding] = False
    logits = ours(batch, attended)
    real, alone = logits[:1, padding:], ours(TOKENS[:1, padding:])
    if config["model_type"] == "Dream":  # its first row is that of the token before, the padding
        real, alone = real[:, 1:], alone[:, 1:]
    torch.testing.assert_close(real, alone, atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[1:], ours(TOKENS[1:]), atol=1e-4, rtol=0)


@torch.inference_mode()
def test_unattended_tokens_have_no_effect(pair):
    ours, _, _ = pair
    attended = torch.ones(TOKENS.shape, dtype=torch.bool)
    attended[:, -1] = False
    seen = slice(0, -1)
    before, after = ours(TOKENS, attended), ours(other_end(TOKENS), attended)
    torch.testing.assert_close(before[:, seen], after[:, seen])


@torch.inference_mode()
def test_some_logits_are_those_of_the_whole_and_only_they_reach_the_head(pair):
    ours, _, _ = pair
    positions, seen = torch.tensor([[0, 3, 8], [8, 1, 1]]), []
    hook = ours.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    logits = ours(TOKENS, logit_positions=positions)
    hook.remove()
    assert seen == [(2, 3, 32)]
    expected = ours(TOKENS).gather(1, positions[..., None].expand(-1, -1, logits.shape[-1]))
    torch.testing.assert_close(logits, expected)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")  # no bfloat16 on this CPU
@torch.inference_mode()
def test_bfloat16_is_near_float32(pair, tmp_path):
    ours, _, config = pair
    write_checkpoint(tmp_path, config)
    half = load_model(str(tmp_path), device="cpu", dtype="bfloat16").transformer
    logits = half(TOKENS)
    assert logits.dtype == torch.bfloat16
    assert (logits - ours(TOKENS)).abs().max() < 0.05 * ours(TOKENS).abs().max()


def test_a_tied_head_is_the_embedding():
    config = Config(
        vocab_size=9, width=8, layers=1, heads=2, kv_heads=2, mlp_width=8, max_length=4,
        tied_head=True,
    )  # fmt: skip
    tied = Transformer(config)
    assert tied.head.weight is tied.embedding.weight
