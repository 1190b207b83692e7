"""The logits processor in transformers' own `generate`, with small models made here."""

import gc

import pytest
import torch
from siphash24 import siphash24
from toys import PROMPT, llada_generate, small_toy
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LogitsProcessor

from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError, KeyFileError, MismatchError
from dllmark.integrations.torch import watermarked
from dllmark.integrations.transformers import DllmarkLogitsProcessor

SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
NO_WORDS = [0, 1, 2, 35, 36]  # a trained model would not write them either
SETTINGS = {"max_new_tokens": 96, "do_sample": True, "suppress_tokens": NO_WORDS}


def llama(vocab_size=37):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, **SPECIAL,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2():
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=37, n_embd=16, n_layer=2, n_head=2, n_positions=160, **SPECIAL)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture
def marking(small_key, small_tokenizer):
    made = DllmarkLogitsProcessor(small_key, tokenizer=small_tokenizer)
    yield made
    made.idle = False


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("more", [
    {}, {"top_k": 20, "top_p": 0.9, "temperature": 0.7}, {"num_beams": 2},
])  # fmt: skip
def test_the_text_is_marked_with_the_processor_and_only_with_it(make, more, marking, p_value):
    model = make()
    marked = model.generate(PROMPT, **SETTINGS, **more, logits_processor=[marking])
    plain = model.generate(PROMPT, **SETTINGS, **more)
    assert p_value(marked[0], 5) < 1e-6
    assert p_value(plain[0], 5) > 1e-3
    assert marking.biased == 96 * more.get("num_beams", 1)
    marking.check()


def test_it_is_a_logits_processor_of_transformers(marking):
    assert isinstance(marking, LogitsProcessor)


def test_one_key_marks_and_one_detector_recognises_both_kinds_of_model(
    small_key, small_tokenizer, marking
):
    detector = Detector(small_key, small_tokenizer)
    one_by_one = llama().generate(PROMPT, **SETTINGS, logits_processor=[marking])
    diffusion = small_toy(small_tokenizer)
    with watermarked(diffusion, small_key, delta=4.0, tokenizer=small_tokenizer):
        in_any_order = llada_generate(diffusion, PROMPT)
    for text in (one_by_one, in_any_order):
        assert detector.detect(text[0, 5:].tolist()).p_value < 1e-6


def test_the_bias_is_delta_for_green_pairs_and_the_mean_for_special_tokens(marking, small_key):
    ids, scores = torch.tensor([[4, 9], [9, 20], [5, 0]]), torch.randn(3, 37)
    biased = marking(ids, scores) - scores
    for row, left in enumerate([9, 20]):
        for right in range(3, 35):
            message = (left << 32 | right).to_bytes(8, "little")
            secret = small_key.secret.reveal()
            hashed = int.from_bytes(siphash24(message, key=secret).digest(), "little")
            expected = 2.0 if hashed < 2**63 else 0.0
            assert biased[row, right].item() == pytest.approx(expected, abs=1e-5)
        assert biased[row, NO_WORDS].tolist() == pytest.approx([1.0] * 5, abs=1e-5)
    assert biased[2].abs().max() == 0  # after padding


def test_the_scores_it_is_given_stay_as_they_are(marking):
    scores = torch.randn(1, 37)
    before = scores.clone()
    assert not torch.equal(marking(PROMPT, scores), scores)
    assert torch.equal(scores, before)


def test_generation_from_embeddings_starts_unmarked_and_goes_on_marked(marking):
    model = llama()
    embedded = model.get_input_embeddings()(PROMPT)
    model.generate(inputs_embeds=embedded, **SETTINGS, logits_processor=[marking])
    assert marking.biased == 95


@pytest.mark.parametrize(
    ("ids", "scores"), [((1, 5), (1, 8, 37)), ((1, 5), (2, 37)), ((5,), (1, 37))]
)
def test_scores_of_several_positions_are_refused(marking, ids, scores):
    """As DiffusionGemma's generate gives them, which has a processor of its own."""
    with pytest.raises(DllmarkError, match="one token after the other"):
        marking(torch.zeros(ids, dtype=torch.int64), torch.zeros(scores))


def test_a_processor_that_was_never_called_is_noticed(small_key, small_tokenizer, marking):
    with pytest.raises(DllmarkError, match="never called"), marking:
        llama().generate(PROMPT, max_new_tokens=2)
    with pytest.warns(RuntimeWarning, match="never called"):
        DllmarkLogitsProcessor(small_key, tokenizer=small_tokenizer)
        gc.collect()


def test_a_vocabulary_that_does_not_fit_is_refused(marking):
    with pytest.raises(MismatchError):
        llama(vocab_size=31).generate(PROMPT, **SETTINGS, logits_processor=[marking])


def test_a_missing_key_file_is_refused(tmp_path):
    with pytest.raises(KeyFileError):
        DllmarkLogitsProcessor(tmp_path / "none.key")
