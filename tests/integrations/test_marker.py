"""What the adapters share: the watermark's own bias, in place, counted, never missing."""

import gc
import subprocess
import sys

import pytest
import torch

from dllmark.errors import DllmarkError, KeyFileError, MismatchError
from dllmark.integrations import marker as marker_module
from dllmark.integrations.marker import Marker, engine
from dllmark.marking.strategies import STRATEGIES
from dllmark.marking.watermark import Watermark

PAD, MASK = 0, 2


def state(seed):
    """A batch in the middle of generation, each text with another number of masks."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 35, (3, 12), generator=random)
    tokens[torch.rand(3, 12, generator=random) < 0.6] = MASK
    tokens[0, 1:], tokens[1, 4:] = 7, MASK
    tokens[:, 0] = PAD
    return tokens, tokens == MASK, torch.randn(3, 12, 37, generator=random)


@pytest.fixture
def marker(small_key, small_tokenizer):
    marker = Marker(small_key, tokenizer=small_tokenizer)
    yield marker
    marker.idle = False


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("at_once", [1, 3 * 37 * 2, 1 << 24])
@pytest.mark.parametrize("seed", range(3))
def test_every_mask_gets_the_watermarks_bias_whatever_the_size_of_the_slices(
    monkeypatch, small_key, small_tokenizer, strategy, at_once, seed
):
    monkeypatch.setattr(marker_module, "MARKED_AT_ONCE", at_once)
    tokens, masked, logits = state(seed)
    alone = Watermark(small_key, strategy, 1.5, tokenizer=small_tokenizer)
    everywhere = torch.arange(12).expand(3, -1)
    expected = alone.bias(tokens, ~masked, logits.clone(), everywhere)
    expected = torch.where(masked[..., None], expected, logits)
    marker = Marker(small_key, strategy, 1.5, tokenizer=small_tokenizer)
    marker.mark(tokens, ~masked, logits, masked)
    assert torch.equal(logits, expected)
    assert marker.biased == int(masked.sum())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shifted_logits_get_the_same_bias_one_row_earlier(small_key, small_tokenizer, strategy):
    tokens, masked, logits = state(0)
    shifted = torch.cat([logits[:, 1:], logits[:, :1]], 1)
    marker = Marker(small_key, strategy, tokenizer=small_tokenizer)
    # Of position 0 the shifted logits say nothing, so the plain ones must not predict it either.
    marker.mark(tokens, ~masked, logits, masked)
    marker.mark(tokens, ~masked, shifted, masked, offset=1)
    assert torch.equal(shifted[:, :-1], logits[:, 1:])


def test_a_block_is_biased_as_the_end_of_its_sequence(small_key, small_tokenizer):
    tokens, masked, logits = state(1)
    tokens[:, :6], masked[:, :6] = torch.arange(3, 9), False
    block = logits[:, 6:].clone()
    marker = Marker(small_key, tokenizer=small_tokenizer)
    marker.mark(tokens, ~masked, logits, masked)
    known = torch.tensor([True, True, False])
    marker.mark_block(tokens[:, 5], known, tokens[:, 6:], ~masked[:, 6:], block, masked[:, 6:])
    assert torch.equal(block[:2], logits[:2, 6:])
    assert masked[2, 6]
    assert not torch.equal(block[2, 0], logits[2, 6])
    assert torch.equal(block[2, 1:], logits[2, 7:])


@pytest.mark.parametrize("shape", [(3, 11, 37), (2, 12, 37), (3, 37)])
def test_logits_that_do_not_cover_the_tokens_are_refused(marker, shape):
    tokens, masked, _ = state(0)
    with pytest.raises(DllmarkError, match="do not cover tokens"):
        marker.mark(tokens, ~masked, torch.zeros(shape), masked)


def test_a_model_with_fewer_tokens_than_the_tokenizer_is_refused(marker):
    tokens, masked, logits = state(0)
    with pytest.raises(MismatchError, match="different models"):
        marker.mark(tokens, ~masked, logits[..., :30], masked)


def test_training_is_refused(marker):
    tokens, masked, logits = state(0)
    logits.requires_grad_()
    with pytest.raises(DllmarkError, match="no_grad"):
        marker.mark(tokens, ~masked, logits, masked)
    with torch.no_grad():
        marker.mark(tokens, ~masked, logits, masked)


def test_a_word_is_no_mask(small_key, small_tokenizer):
    for wrong in (5, -1):
        with pytest.raises(DllmarkError, match=f"token {wrong} is no mask"):
            Marker(small_key, tokenizer=small_tokenizer, mask_id=wrong)
    Marker(small_key, tokenizer=small_tokenizer, mask_id=36).idle = False  # past the tokenizer


def test_the_key_may_be_a_file(key, key_file, tmp_path):
    with Marker(key_file) as marker:
        assert marker.watermark.identity == key.identity
        marker.biased = 1
    with pytest.raises(KeyFileError, match="there is no key file"):
        Marker(str(tmp_path / "none.key"))


def test_a_key_of_another_tokenizer_is_refused(key, small_tokenizer):
    with pytest.raises(MismatchError, match="not the one this key was made for"):
        Marker(key, tokenizer=small_tokenizer)


def test_leaving_without_a_biased_token_is_an_error(small_key, small_tokenizer):
    tokens, masked, logits = state(0)
    with (
        pytest.raises(DllmarkError, match="nothing is marked"),
        Marker(small_key, tokenizer=small_tokenizer) as marker,
    ):
        marker.mark(tokens, ~masked, logits, torch.zeros_like(masked))
    with Marker(small_key, tokenizer=small_tokenizer) as marker:
        marker.mark(tokens, ~masked, logits, masked)
    marker.check()


def test_another_error_is_not_hidden_by_ours(small_key, small_tokenizer):
    with pytest.raises(ZeroDivisionError), Marker(small_key, tokenizer=small_tokenizer):
        _ = 1 / 0


def test_one_that_was_never_called_says_so_when_it_is_thrown_away(small_key, small_tokenizer):
    with pytest.warns(RuntimeWarning, match="never called"):
        Marker(small_key, tokenizer=small_tokenizer)
        gc.collect()


def test_a_missing_engine_is_named_with_what_to_install():
    with pytest.raises(DllmarkError, match="pip install 'nothing>=3'"):
        engine("no_such_engine.part", "nothing>=3")


def test_a_fault_inside_an_engine_is_not_called_a_missing_engine(tmp_path, monkeypatch):
    (tmp_path / "broken_engine.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        engine("broken_engine", "broken_engine")


def test_without_torch_the_adapters_say_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n"
        "    import dllmark.integrations.dream\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "DllmarkError the adapters need torch: pip install 'dllmark[torch]'\n"


def test_importing_the_adapters_imports_no_engine():
    code = (
        "import sys\n"
        "import dllmark.integrations.dream, dllmark.integrations.torch\n"
        "import dllmark.integrations.diffusers, dllmark.integrations.sglang\n"
        "import dllmark.integrations.transformers\n"
        "print([name for name in ('diffusers', 'transformers', 'sglang') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
