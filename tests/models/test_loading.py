"""A checkpoint is loaded whole and exactly, or refused with a message that says what is wrong."""

import json
import subprocess
import sys

import huggingface_hub
import pytest
import torch
from checkpoints import (
    DREAM_SPECIALS,
    LLADA_SPECIALS,
    ORDINARY,
    ROWS,
    dream_config,
    llada_config,
    llada_weights,
    tokenizer_json,
    write_checkpoint,
    write_qwen_files,
    write_weights,
)
from safetensors.torch import load_file

from dllmark.errors import ModelError, TokenizerError
from dllmark.models.families import DREAM, EMBEDDED, LLADA
from dllmark.models.loading import EMBEDDED as EMBEDDED_FOLDER
from dllmark.models.loading import HUB_FILES, load_model, model_files

CONFIGS = [
    llada_config(),
    llada_config(weight_tying=True),
    dream_config(),
    dream_config(tie_word_embeddings=True),
]


@pytest.fixture
def folder(tmp_path):
    """A whole checkpoint in LLaDA's layout."""
    write_checkpoint(tmp_path, llada_config())
    return tmp_path


def rewrite_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {name: value for name, value in config.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(config))


def rewrite_weights(folder, **changes):
    """Write the weights again with some replaced, added or, where None, left out."""
    weights = load_file(folder / "model.safetensors") | changes
    write_weights(folder, {name: t for name, t in weights.items() if t is not None})


def assert_has(model, weights):
    """Assert that a model's parameters are the given weights, and that none is left over."""
    names = model.family.parameter_names(model.config)
    assert sorted(names.values()) == sorted(weights)
    for ours, theirs in names.items():
        parameter = model.transformer.get_parameter(ours)
        assert torch.equal(parameter, weights[theirs].to(parameter))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("config", CONFIGS)
def test_every_weight_arrives_in_the_number_format_asked_for(tmp_path, config, shards, dtype):
    weights = write_checkpoint(tmp_path, config, shards)
    model = load_model(str(tmp_path), device="cpu", dtype=dtype)
    assert_has(model, weights)
    assert {p.dtype for p in model.transformer.parameters()} == {getattr(torch, dtype)}
    assert not any(p.requires_grad for p in model.transformer.parameters())
    assert not model.transformer.training


@pytest.mark.parametrize("config", CONFIGS)
def test_the_head_is_the_embedding_exactly_where_config_json_ties_them(tmp_path, config):
    write_checkpoint(tmp_path, config)
    transformer = load_model(str(tmp_path), dtype="bfloat16").transformer
    tied = config.get("weight_tying", config.get("tie_word_embeddings"))
    assert (transformer.head.weight is transformer.embedding.weight) == tied


def test_auto_is_float32_on_the_cpu_and_bfloat16_on_a_gpu(folder):
    model = load_model(str(folder))
    found = model.device.type, model.transformer.embedding.weight.dtype
    gpu = torch.cuda.is_available()
    assert found == (("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32))


def test_a_model_of_llada_knows_its_tokens(folder):
    model = load_model(str(folder))
    ids = {token: ORDINARY + place for place, token in enumerate(LLADA_SPECIALS)}
    assert model.family is LLADA
    assert model.mask_id == ids["<|mdm_mask|>"]
    assert model.end_ids == (ids["<|endoftext|>"], ids["<|eot_id|>"])
    assert model.pad_id == ids["<|endoftext|>"]
    assert model.config.vocab_size == ROWS
    assert model.name == str(folder)
    assert model.tokenizer.decode(model.tokenizer.encode("green or red")) == "green or red"


@pytest.mark.parametrize(
    ("given", "used"), [(5, 5), *((other, ORDINARY + 1) for other in (None, -1, ROWS, "5"))]
)
def test_padding_is_the_end_of_text_unless_config_json_names_another(folder, given, used):
    rewrite_config(folder, pad_token_id=given)
    assert load_model(str(folder)).pad_id == used


def test_an_end_of_turn_that_the_tokenizer_lacks_is_left_out(folder):
    (folder / "tokenizer.json").write_text(tokenizer_json(LLADA_SPECIALS[:3]))
    assert load_model(str(folder)).end_ids == (ORDINARY + 1,)


@pytest.mark.parametrize("mask_token_id", ["absent", None, ORDINARY + 2])
def test_the_mask_is_found_in_config_json_or_in_the_tokenizer(folder, mask_token_id):
    rewrite_config(folder, mask_token_id=mask_token_id)
    assert load_model(str(folder)).mask_id == ORDINARY + 2


def test_a_mask_that_only_config_json_names_is_taken_if_it_has_an_embedding(folder):
    specials = tuple(token.replace("mdm_mask", "reserved_252") for token in LLADA_SPECIALS)
    (folder / "tokenizer.json").write_text(tokenizer_json(specials))
    assert load_model(str(folder)).mask_id == ORDINARY + 2
    rewrite_config(folder, mask_token_id=ROWS)
    with pytest.raises(ModelError, match=f"mask_token_id {ROWS}, .* {ROWS} rows"):
        load_model(str(folder))


def test_the_embedding_has_vocab_size_rows_where_no_embedding_size_is_given(folder):
    rewrite_config(folder, embedding_size="absent")
    assert load_model(str(folder)).config.vocab_size == ROWS


@pytest.mark.parametrize(
    ("config", "head"),
    [
        (llada_config(weight_tying=True), "model.transformer.ff_out.weight"),
        (dream_config(tie_word_embeddings=True), "lm_head.weight"),
    ],
)
def test_a_tied_checkpoint_may_also_store_its_head_which_is_not_used(tmp_path, config, head):
    weights = write_checkpoint(tmp_path, config)
    rewrite_weights(tmp_path, **{head: torch.ones(ROWS, 32)})
    model = load_model(str(tmp_path), dtype="float32")
    assert_has(model, weights)
    assert model.transformer.head.weight is model.transformer.embedding.weight


@pytest.mark.parametrize(
    "config", [llada_config(n_kv_heads=None), dream_config(num_key_value_heads=None)]
)
def test_there_is_a_key_for_each_head_where_no_number_of_keys_is_given(tmp_path, config):
    weights = write_checkpoint(tmp_path, config)
    model = load_model(str(tmp_path), dtype="float32")
    assert model.config.kv_heads == model.config.heads == 4
    assert_has(model, weights)


def test_rotary_tables_of_old_checkpoints_are_ignored(folder):
    rewrite_weights(folder, **{"model.transformer.blocks.0.rotary_emb.inv_freq": torch.ones(4)})
    assert_has(load_model(str(folder), dtype="float32"), llada_weights(llada_config()))


def test_llada_loads_with_its_real_vocabulary(tmp_path):
    specials = [f"<|reserved_token_{place}|>" for place in range(269)]
    specials[:2], specials[256], specials[268] = LLADA_SPECIALS[:2], "<|mdm_mask|>", "<|eot_id|>"
    write_checkpoint(tmp_path, config := llada_config(
        d_model=8, n_layers=1, embedding_size=126_464, vocab_size=126_464,
        mask_token_id=126_336, pad_token_id=126_081,
    ))  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(tuple(specials), 126_080))
    model = load_model(str(tmp_path))
    assert (model.mask_id, model.end_ids, model.pad_id) == (126_336, (126_081, 126_348), 126_081)
    assert model.tokenizer.vocab_size == 126_349
    logits = model.transformer(torch.tensor([[0, 126_336]], device=model.device))
    assert logits.shape == (1, 2, config["embedding_size"])


def test_dream_loads_with_its_real_vocabulary_and_qwen_tokenizer_files(tmp_path):
    specials = [f"<|reserved_token_{place}|>" for place in range(24)]
    specials[:3], specials[23] = DREAM_SPECIALS[:3], "<|mask|>"
    write_checkpoint(tmp_path, dream_config(
        hidden_size=8, num_hidden_layers=1, vocab_size=152_064,
        mask_token_id=151_666, pad_token_id=151_643,
    ))  # fmt: skip
    (tmp_path / "tokenizer.json").unlink()
    write_qwen_files(tmp_path, tokenizer_json(tuple(specials), 151_643))
    model = load_model(str(tmp_path))
    assert (model.mask_id, model.end_ids, model.pad_id) == (151_666, (151_643, 151_645), 151_643)
    assert model.tokenizer.vocab_size == 151_667
    prompt = model.tokenizer.encode(DREAM.chat("Is the grass green?"))
    assert prompt[0] == 151_644
    logits = model.transformer(torch.as_tensor(prompt, device=model.device)[None])
    assert logits.shape == (1, len(prompt), 152_064)


def test_no_file_but_config_tokenizer_and_weights_is_opened(folder):
    (folder / "modeling_llada.py").write_text("raise SystemExit('code from a hub was run')")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle would be here")
    opened, watching = set(), True

    def watch(event, arguments):
        if watching and event == "open" and str(arguments[0]).startswith(str(folder)):
            opened.add(str(arguments[0]).removeprefix(f"{folder}/"))

    sys.addaudithook(watch)  # it cannot be removed again, only told to stop watching
    load_model(str(folder))
    watching = False
    assert opened <= {"config.json", "tokenizer.json", "model.safetensors"}
    assert "config.json" in opened
    assert "modeling_llada" not in sys.modules


def test_the_compiler_of_torch_which_takes_seconds_to_import_is_not_needed():
    code = (
        "import sys; from dllmark import generate, load_model\n"
        "generate(load_model('embedded'), ['Why?'], None, tokens=8)\n"
        "print('torch._dynamo' in sys.modules, 'sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_only_data_files_of_a_repository_on_the_hub_are_downloaded(folder, monkeypatch):
    def snapshot_download(repository, allow_patterns):
        assert repository == "GSAI-ML/LLaDA-8B-Instruct"
        kinds = (".json", ".txt", ".jinja", ".safetensors")
        assert all(name.endswith(kinds) for name in allow_patterns)
        assert allow_patterns == HUB_FILES
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    model = load_model("GSAI-ML/LLaDA-8B-Instruct")
    assert model.name == model.tokenizer.name == "GSAI-ML/LLaDA-8B-Instruct"


def test_the_files_of_a_model_come_in_a_fixed_order_the_weights_last(tmp_path):
    write_checkpoint(tmp_path, dream_config(), shards=2)
    write_qwen_files(tmp_path, (tmp_path / "tokenizer.json").read_text())
    small = ["config", "tokenizer", "vocab", "merges", "tokenizer_config"]
    weights = ["model.safetensors.index", "model-00001-of-00002", "model-00002-of-00002"]
    assert [path.stem for path in model_files(str(tmp_path))] == [*small, *weights]


def test_a_repository_that_cannot_be_reached_is_one_line(monkeypatch):
    def snapshot_download(repository, allow_patterns):
        raise ConnectionError("a long story\nabout sockets")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelError, match=r"a/b from the .* hub \(ConnectionError\)") as caught:
        load_model("a/b")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("nowhere", {}, "there is no model nowhere: give `embedded`, the folder"),
        ("./no/folder", {}, "there is no model ./no/folder"),
        (".", {"dtype": "int4"}, "unknown dtype int4: use auto, float32, bfloat16, float16"),
        (".", {"device": "gpu"}, "the device gpu is not available here: use auto, cpu"),
        (".", {"device": "cuda:99"}, "the device cuda:99 is not available here"),
    ],
)
def test_a_source_dtype_or_device_that_is_not_there_is_named(source, options, message):
    with pytest.raises(ModelError, match=message):
        load_model(source, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt2"},
            "model_type gpt2, which is unknown: .* llada, Dream, llada2_moe, sdar, d",
        ),
        ({"model_type": "absent"}, "model_type None, which is unknown"),
        ({"model_type": ["llada"]}, r"model_type \['llada'\], which is unknown"),
        ({"rope_theta": "high"}, "config.json gives a rope_theta that is not a number"),
        ({"mask_token_id": "seven"}, "mask_token_id seven, which does not fit"),
        ({"d_model": "absent"}, "config.json gives no d_model"),
        ({"n_layers": "two"}, "config.json gives no n_layers, or not a whole number"),
        ({"embedding_size": "absent", "vocab_size": "absent"}, "gives no embedding_size"),
        ({"mask_token_id": 7}, r"mask_token_id 7, .* gives <\|mdm_mask\|> the id 302"),
        ({"embedding_size": 300}, "has 306 ids, the embedding only 300 rows"),
        ({"embedding_size": 319}, r"wte.weight .*\(320, 32\), .* \(319, 32\) \(2 tensors mis"),
        ({"d_model": 36}, r"wte.weight in .* has the shape \(320, 32\), config.json asks for"),
        ({"n_layers": 3}, r"lack model.transformer.blocks.2.* \(9 tensors missing\)"),
        ({"n_layers": 1}, r"have model.transformer.blocks.1.* \(9 tensors too many\)"),
    ],
)
def test_a_config_json_that_does_not_fit_is_refused(folder, changes, message):
    rewrite_config(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (None, r"lack model.transformer.ln_f.weight \(1 tensors missing\): download"),
        (torch.ones(31), r"ln_f.weight in .* has the shape \(31,\), config.json asks for \(32,\)"),
    ],
)
def test_a_tensor_that_is_missing_or_misshapen_is_named(folder, tensor, message):
    rewrite_weights(folder, **{"model.transformer.ln_f.weight": tensor})
    with pytest.raises(ModelError, match=message):
        load_model(str(folder))


@pytest.mark.parametrize("content", [b"", b"{}", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_weights_file_that_is_no_safetensors_is_named(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model.safetensors is cut short or no .*: download it"):
        load_model(str(folder))


@pytest.mark.parametrize("missing_bytes", [1, 5_000])
def test_a_weights_file_cut_short_is_named(tmp_path, missing_bytes):
    write_checkpoint(tmp_path, llada_config(), shards=3)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-missing_bytes])
    with pytest.raises(ModelError, match=r"model-00002-of-00003.safetensors is cut short"):
        load_model(str(tmp_path))


def test_shards_that_the_index_names_must_be_there(tmp_path):
    write_checkpoint(tmp_path, llada_config(), shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003.* \(1 of 3 files absent\)"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "there is no config.json in .*: give the folder of a model"),
        ("model.safetensors", "has neither model.safetensors nor model.safetensors.index.json"),
    ],
)
def test_a_folder_without_a_file_it_needs_is_refused(folder, name, message):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=message):
        load_model(str(folder))


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_damaged_config_json_is_named(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(str(folder))


@pytest.mark.parametrize("token", ["<|mdm_mask|>", "<|endoftext|>"])
def test_a_tokenizer_without_a_token_the_model_needs_is_refused(folder, token):
    rewrite_config(folder, mask_token_id=None)
    specials = tuple(special for special in LLADA_SPECIALS if special != token)
    (folder / "tokenizer.json").write_text(tokenizer_json(specials))
    with pytest.raises(ModelError, match=f"no token {token}: put".replace("|", r"\|")):
        load_model(str(folder))


def test_a_folder_without_any_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"needs a tokenizer.json, or Qwen2's vocab.json"):
        load_model(str(folder))


def test_embedded_is_the_model_in_the_package(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, dream_config())
    rewrite_config(tmp_path, model_type="dllmark")
    monkeypatch.setattr("dllmark.models.loading.EMBEDDED", tmp_path)
    model = load_model("embedded")
    assert (model.family, model.name, model.tokenizer.name) == (EMBEDDED, "embedded", "embedded")
    assert model.config.shifted


def test_a_text_of_the_embedded_model_ends_where_another_turn_would_begin(tokenizer):
    ends = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    assert [*EMBEDDED.ends] == ends
    assert not tokenizer.scored[[int(tokenizer.encode(end)[0]) for end in ends]].any()


@pytest.mark.skipif(
    not (EMBEDDED_FOLDER / "model.safetensors").exists(), reason="its weights are not there"
)
def test_the_embedded_model_fills_a_mask_with_a_word_that_fits():
    model = load_model("embedded")
    text = "In summer the grass is<|mask|> and the sky is blue."
    tokens = torch.as_tensor(model.tokenizer.encode(text), device=model.device)
    [place] = (tokens == model.mask_id).nonzero().flatten()
    [logits] = model.transformer(tokens[None])
    assert logits.shape == (len(tokens), model.config.vocab_size)
    word = model.tokenizer.decode([int(logits[place].argmax())])
    assert word in (" green", " red", " white", " yellow", " golden", " brown", " pink")
