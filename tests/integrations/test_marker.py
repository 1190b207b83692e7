"""What the adapters share: the watermark's own bias, in place, counted, never missing."""

import gc
import importlib
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from dllmark.errors import DllmarkError, InputError, MismatchError, MissingPackageError
from dllmark.integrations import marker as marker_module
from dllmark.integrations.marker import Marker, needs
from dllmark.marking.strategies import BIASES, STRATEGIES
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


@pytest.mark.parametrize("strategy", BIASES)
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


@pytest.mark.parametrize("strategy", BIASES)
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


@pytest.mark.parametrize("shape", [(3, 11, 37), (2, 12, 37), (3, 37), (37,)])
def test_logits_that_do_not_cover_the_tokens_are_refused(marker, shape):
    tokens, masked, _ = state(0)
    with pytest.raises(DllmarkError, match="do not cover tokens"):
        marker.mark(tokens, ~masked, torch.zeros(shape), masked)


def test_tokens_that_are_no_batch_of_sequences_are_refused(marker):
    tokens, masked, logits = state(0)
    with pytest.raises(DllmarkError, match=r"logits \[B, L, V\] for all tokens \[B, L\]"):
        marker.mark(tokens[0], ~masked[0], logits, masked[0])


def test_what_is_not_said_is_the_default_for_engines(marker):
    assert marker.watermark.strategy is STRATEGIES["fresh-bidirectional"]
    assert marker.watermark.delta == 2.0


@pytest.mark.parametrize("name", ["joint", "adaptive-joint", "cooled-joint"])
def test_what_an_engine_does_not_leave_to_the_mark_is_refused(small_key, small_tokenizer, name):
    with pytest.raises(InputError, match=f"{name} chooses positions"):
        Marker(small_key, name, tokenizer=small_tokenizer)


def test_another_strategy_brings_its_own_strength(small_key, small_tokenizer):
    marker = Marker(small_key, "guided-bidirectional", tokenizer=small_tokenizer)
    marker.idle = False
    assert marker.watermark.delta == STRATEGIES["guided-bidirectional"].default_delta == 3.0


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


def test_leaving_without_a_biased_token_is_an_error(small_key, small_tokenizer):
    tokens, masked, logits = state(0)
    with (
        pytest.raises(DllmarkError, match="nothing is marked"),
        Marker(small_key, tokenizer=small_tokenizer) as marker,
    ):
        marker.mark(tokens, ~masked, logits, torch.zeros_like(masked))
    with Marker(small_key, tokenizer=small_tokenizer) as marker:
        marker.mark(tokens, ~masked, logits, masked)
    with pytest.raises(DllmarkError, match="nothing is marked"), marker:
        pass


def test_another_error_is_not_hidden_by_ours(small_key, small_tokenizer):
    with pytest.raises(ZeroDivisionError), Marker(small_key, tokenizer=small_tokenizer):
        _ = 1 / 0


def test_one_that_was_never_called_says_so_when_it_is_thrown_away(small_key, small_tokenizer):
    with pytest.warns(RuntimeWarning, match="never called"):
        Marker(small_key, tokenizer=small_tokenizer)
        gc.collect()


def test_an_engine_that_is_missing_or_too_old_is_named_with_what_to_install(monkeypatch):
    missing = pytest.raises(MissingPackageError, match=r"^this adapter needs no_engine>=3: pip ins")
    with missing, needs("no_engine>=3"):
        import no_engine.part  # noqa: F401
    monkeypatch.setitem(sys.modules, "old_engine", ModuleType("old_engine"))
    too_old = pytest.raises(MissingPackageError, match="pip install 'old_engine>=2'")
    with too_old, needs("old_engine>=2"):
        from old_engine import Scheduler  # noqa: F401


def test_a_fault_inside_an_engine_is_not_called_a_missing_engine(tmp_path, monkeypatch):
    (tmp_path / "broken_engine.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"), needs("broken_engine"):
        import broken_engine  # noqa: F401


def printed(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


IMPORT = "try:\n    import {}\nexcept ImportError as error:\n    print(type(error).__name__, error)"


def test_without_torch_the_adapters_say_what_to_install():
    code = "import sys; sys.modules['torch'] = None\n" + IMPORT.format("dllmark.integrations.dream")
    assert printed(code) == (
        "MissingPackageError the adapters need torch: pip install 'dllmark[torch]'\n"
    )


@pytest.mark.parametrize(("engine", "requirement"), [
    ("diffusers", "diffusers>=0.42"), ("sglang", "sglang>=0.5.18"),
    ("transformers", "transformers>=5"),
])  # fmt: skip
def test_without_its_engine_an_adapter_says_what_to_install(monkeypatch, engine, requirement):
    monkeypatch.setitem(sys.modules, engine, None)
    monkeypatch.delitem(sys.modules, f"dllmark.integrations.{engine}", raising=False)
    with pytest.raises(MissingPackageError, match=f"adapter needs {requirement}: pip install '"):
        importlib.import_module(f"dllmark.integrations.{engine}")


def test_an_adapter_without_an_engine_imports_none():
    code = (
        "import sys\n"
        "import dllmark.integrations.dream, dllmark.integrations.torch\n"
        "print([name for name in ('diffusers', 'transformers', 'sglang') if name in sys.modules])\n"
    )
    assert printed(code) == "[]\n"
