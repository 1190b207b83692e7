"""A field of config.json that changes the arithmetic is followed or refused, never ignored."""

import json

import pytest
from checkpoints import dream_config, llada_config, write_checkpoint

from dllmark.errors import ModelError
from dllmark.models.loading import load_model


@pytest.fixture
def load(tmp_path):
    """Load a small checkpoint whose config.json was changed; "absent" leaves a field out."""

    def load(config, **changes):
        write_checkpoint(tmp_path, config)
        changed = {k: v for k, v in (config | changes).items() if v != "absent"}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        return load_model(str(tmp_path))

    return load


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scale_logits", True),
        ("input_emb_norm", True),
        ("activation_type", "swiglu"),
        ("activation_type", "gelu"),
        ("layer_norm_type", "default"),
        ("layer_norm_type", "gemma_rms"),
        ("layer_norm_with_affine", False),
        ("bias_for_layer_norm", True),
        ("attention_layer_norm", True),
        ("block_type", "sequential"),
        ("block_group_size", 2),
        ("include_bias", True),
        ("include_qkv_bias", True),
        ("multi_query_attention", True),
        ("alibi", True),
        ("rope", False),
    ],
)
def test_what_changes_the_arithmetic_of_llada_is_refused(load, field, value):
    with pytest.raises(ModelError, match=f"config.json says {field} {value}: .* LLaDA models with"):
        load(llada_config(), **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_act", "gelu", "says hidden_act gelu: .* Dream models with silu only"),
        ("use_sliding_window", True, "says use_sliding_window True"),
        ("rope_scaling", {"type": "yarn", "factor": 4.0}, "in rope_scaling for the rotation yarn"),
        ("rope_scaling", {"rope_type": "linear"}, "in rope_scaling for the rotation linear"),
        ("rope_parameters", {"rope_type": "dynamic"}, "in rope_parameters for the rotation dyn"),
        ("rope_parameters", [1e6], "gives a rope_parameters that is not an object"),
    ],
)
def test_what_changes_the_arithmetic_of_dream_is_refused(load, field, value, message):
    with pytest.raises(ModelError, match=message):
        load(dream_config(), **{field: value})


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("activation_type", "swiglu"),
        ("layer_norm_type", "default"),
        ("block_type", "sequential"),
        ("rope", "False"),
    ],
)
def test_a_field_left_out_means_what_the_published_code_takes_then(load, field, default):
    with pytest.raises(ModelError, match=f"has no {field}, which means {default}: "):
        load(llada_config(), **{field: "absent"})


@pytest.mark.parametrize("config", [llada_config(), dream_config()], ids=["llada", "dream"])
@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_theta": "absent"}, 10_000.0),
        ({"rope_theta": None}, 10_000.0),
        ({"rope_theta": "absent", "rope_parameters": {"rope_theta": 5e5}}, 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}, 7e5),
        ({"rope_scaling": {"rope_type": "default"}, "rope_theta": 3e5}, 3e5),
    ],
)
def test_the_rotation_is_the_one_that_the_published_code_takes(load, config, changes, theta):
    assert load(config, **changes).config.rope_theta == theta


def test_fields_that_say_what_we_compute_are_accepted(load):
    usual = {
        "mlp_ratio": 4, "scale_logits": False, "alibi": False, "alibi_bias_max": 8.0,
        "include_bias": False, "bias_for_layer_norm": False, "multi_query_attention": None,
        "attention_dropout": 0.0, "flash_attention": False, "init_fn": "mitchell",
        "layer_norm_with_affine": True, "block_group_size": 1, "precision": "amp_bf16",
    }  # fmt: skip
    assert load(llada_config(), **usual).config.layers == 2
