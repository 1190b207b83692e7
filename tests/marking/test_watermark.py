"""The bias equals the paper's algorithms, taken position by position and token by token."""

import numpy as np
import pytest
import torch
from naive_bias import DELTA, SPECIAL, VOCABULARY, naive_logits

import dllmark.marking.bias
import dllmark.marking.prediction
from dllmark.detection.detector import Detector
from dllmark.errors import DllmarkError, MismatchError
from dllmark.marking.strategies import BIASES
from dllmark.marking.watermark import Watermark
from dllmark.relation.greenlist import BitMatrix, HashedGreenList
from dllmark.relation.key import Secret, WatermarkKey

PAD, MASK = 0, 2

pytestmark = pytest.mark.usefixtures("one_core")


def random_state(seed, dtype=torch.float32, batch=3, length=14):
    """A batch in the middle of generation: left padding, a prompt, text and masks."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 35, (batch, length), generator=rng)
    revealed = torch.rand(batch, length, generator=rng) < 0.5
    for row in range(batch):
        tokens[row, :row] = PAD
        revealed[row, : row + 2] = True
    tokens[0, 5], revealed[0, 5] = 1, True  # an end of text in the middle
    tokens[~revealed] = MASK
    # Values of a permutation stay distinct in bfloat16, so that the best candidate is one.
    ranks = torch.rand(batch, length, VOCABULARY, generator=rng).argsort(-1)
    return tokens, revealed, (ranks / 8 - 2).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strategy", BIASES)
@pytest.mark.parametrize("seed", range(2))
def test_the_bias_is_the_papers(small_key, small_tokenizer, strategy, dtype, seed):
    tokens, revealed, logits = random_state(seed, dtype)
    watermark = Watermark(small_key, strategy, DELTA, top_k=3, tokenizer=small_tokenizer)
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    biased = watermark.bias(tokens, revealed, logits, positions)
    assert biased.dtype == dtype
    for b, row in enumerate(tokens):
        for i in range(len(row)):
            expected = naive_logits(small_key, strategy, 3, row, revealed[b], logits[b], i)
            torch.testing.assert_close(
                biased[b, i], torch.tensor(expected).to(dtype), rtol=1e-6, atol=1e-6
            )


@pytest.mark.parametrize("strategy", BIASES)
def test_only_the_logits_that_are_needed_give_the_same_bias(small_key, small_tokenizer, strategy):
    tokens, revealed, logits = random_state(7)
    watermark = Watermark(small_key, strategy, DELTA, tokenizer=small_tokenizer)
    positions = torch.tensor([[6, 9], [13, 8], [4, -1]])
    covered = torch.tensor([[5, 6, 7, 8, 9, 10], [12, 13, 7, 8, 9, 0], [5, 4, 3, 2, 1, 0]])
    some = logits[torch.arange(3)[:, None], covered]
    few = watermark.bias(tokens, revealed, some, positions, covered)
    full = watermark.bias(tokens, revealed, logits, positions)
    torch.testing.assert_close(few[:2], full[:2])
    torch.testing.assert_close(few[2, 0], full[2, 0])


@pytest.mark.parametrize("strategy", BIASES)
def test_reachable_tokens_get_the_same_bias_as_among_all_tokens(
    monkeypatch, tmp_path, small_key, small_tokenizer, strategy
):
    tokens, revealed, logits = random_state(11)
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    reachable = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    full = Watermark(small_key, strategy, DELTA, tokenizer=small_tokenizer).bias(
        tokens, revealed, logits, positions
    )
    monkeypatch.setattr(dllmark.marking.prediction, "LOGITS_AT_ONCE", 2 * VOCABULARY)
    matrix = BitMatrix.build(HashedGreenList(small_key, VOCABULARY), tmp_path / "m", progress=False)
    for source in (small_key, matrix):
        watermark = Watermark(source, strategy, DELTA, tokenizer=small_tokenizer)
        gains = []

        def note(gain, gains=gains):
            gains.append(gain)
            return reachable

        biased = watermark.bias(tokens, revealed, logits, positions, reachable=note)
        assert torch.equal(biased[reachable], full[reachable])
        if not watermark.strategy.fresh:  # else repeats gain what has no colour
            gained = full.double() - logits.double()
            assert (gained <= gains[0][..., None] + 1e-5).all()
        assert gains[0].max() <= 2.0001 * DELTA


def test_a_neighbour_without_logits_is_not_predicted(small_key, small_tokenizer):
    tokens, revealed = torch.tensor([[5, MASK, MASK]]), torch.tensor([[True, False, False]])
    logits = torch.zeros(1, 2, VOCABULARY)
    watermark = Watermark(small_key, "predictive-bidirectional", DELTA, tokenizer=small_tokenizer)
    kgw = Watermark(small_key, "kgw", DELTA, tokenizer=small_tokenizer)
    known, at = torch.tensor([[0, 1]]), torch.tensor([[1]])
    block_end = watermark.bias(tokens, revealed, logits, at, known)
    torch.testing.assert_close(block_end, kgw.bias(tokens, revealed, logits, at, known))


def test_a_matrix_biases_like_the_hash(tmp_path, small_key, small_tokenizer):
    tokens, revealed, logits = random_state(3)
    matrix = BitMatrix.build(HashedGreenList(small_key, VOCABULARY), tmp_path / "m", progress=False)
    positions = torch.arange(14).expand(3, 14)
    for strategy in BIASES:
        hashed = Watermark(small_key, strategy, tokenizer=small_tokenizer)
        looked_up = Watermark(matrix, strategy, tokenizer=small_tokenizer)
        torch.testing.assert_close(
            looked_up.bias(tokens, revealed, logits, positions),
            hashed.bias(tokens, revealed, logits, positions),
        )


def test_a_gpu_without_triton_hashes_there_and_gives_the_same_bits(
    monkeypatch, small_key, small_tokenizer
):
    """Which this machine may not have: the lines it would run, run here."""
    tokens, revealed, logits = random_state(5)
    positions = torch.tensor([[6, 9], [13, 8], [4, -1]])
    for strategy in BIASES:
        watermark = Watermark(small_key, strategy, DELTA, tokenizer=small_tokenizer)
        expected = watermark.bias(tokens, revealed, logits, positions)
        with monkeypatch.context() as patch:
            patch.setattr(dllmark.marking.bias, "_answers_on", lambda green, device: True)
            patch.setattr(dllmark.marking.prediction, "LOGITS_AT_ONCE", 2 * VOCABULARY)
            assert torch.equal(watermark.bias(tokens, revealed, logits, positions), expected)


def test_only_a_matrix_needs_the_host(tmp_path, small_key, small_tokenizer):
    hashed = HashedGreenList(small_key, VOCABULARY)
    matrix = BitMatrix.build(hashed, tmp_path / "m", progress=False)
    for source, on_device in ((small_key, True), (hashed, True), (matrix, False)):
        assert Watermark(source, tokenizer=small_tokenizer).on_device is on_device


def test_where_one_token_is_left_it_is_certain(small_key, small_tokenizer):
    """Tokens that must not be written have no part in the expectation."""
    tokens, revealed = torch.full((1, 3), MASK), torch.zeros(1, 3, dtype=torch.bool)
    logits = torch.full((1, 3, VOCABULARY), -torch.inf)
    logits[..., 3] = 1.0
    common = {"delta": DELTA, "tokenizer": small_tokenizer}
    expected = Watermark(small_key, "expected-bidirectional", **common)
    argmax = Watermark(small_key, "predictive-bidirectional", **common)
    at = torch.tensor([[0, 1, 2]])
    assert torch.equal(
        expected.bias(tokens, revealed, logits, at), argmax.bias(tokens, revealed, logits, at)
    )


def test_no_strength_is_no_change(small_key, small_tokenizer):
    tokens, revealed, logits = random_state(1)
    watermark = Watermark(small_key, delta=0, tokenizer=small_tokenizer)
    positions = torch.arange(14).expand(3, 14)
    assert torch.equal(watermark.bias(tokens, revealed, logits, positions), logits)


def test_one_candidate_is_the_argmax_weighted_by_its_probability(small_key, small_tokenizer):
    tokens, revealed = torch.tensor([[MASK, MASK]]), torch.zeros(1, 2, dtype=torch.bool)
    logits = torch.zeros(1, 2, VOCABULARY)
    logits[0, 0, 9] = 4.0
    positions = torch.tensor([[1]])
    common = {"delta": DELTA, "tokenizer": small_tokenizer}
    expected = Watermark(small_key, "expected-bidirectional", top_k=1, **common)
    argmax = Watermark(small_key, "predictive", **common)
    p = logits[0, 0].softmax(-1)[9]
    torch.testing.assert_close(
        expected.bias(tokens, revealed, logits, positions),
        p * argmax.bias(tokens, revealed, logits, positions),
    )


def test_the_key_does_not_change_how_likely_a_special_token_is_on_average(
    small_key, small_tokenizer
):
    tokens, revealed, logits = random_state(2)
    watermark = Watermark(small_key, "predictive-bidirectional", DELTA, tokenizer=small_tokenizer)
    # Position 3 of the first sequence, with both neighbours revealed and neither special.
    tokens[0, 2], tokens[0, 4] = 10, 11
    revealed[0, 2] = revealed[0, 4] = True
    biased = watermark.bias(tokens, revealed, logits, torch.tensor([[3], [-1], [-1]]))[0, 0]
    special = torch.tensor(sorted(SPECIAL))
    torch.testing.assert_close(biased[special], logits[0, 3, special] + 2 * small_key.gamma * DELTA)


@pytest.mark.parametrize("strategy", BIASES)
@pytest.mark.parametrize("order", ["left to right", "right to left", "random", "pairs"])
def test_marked_tokens_are_detected_in_any_order_that_shows_a_neighbour(
    small_key, small_tokenizer, strategy, order
):
    """Random logits in place of a model; `kgw` needs the left neighbour, as the paper says."""
    rng = np.random.default_rng(0)
    length = 120
    steps = {
        "left to right": [[i] for i in range(length)],
        "right to left": [[i] for i in reversed(range(length))],
        "random": [[i] for i in rng.permutation(length)],
        "pairs": rng.permutation(length).reshape(-1, 2).tolist(),
    }[order]
    watermark = Watermark(small_key, strategy, 8.0, tokenizer=small_tokenizer)
    tokens = torch.full((1, length), MASK)
    revealed = torch.zeros(1, length, dtype=torch.bool)
    logits = 2 * torch.randn(1, length, VOCABULARY, generator=torch.manual_seed(0))
    logits[..., sorted(SPECIAL)] = -30
    for step in steps:
        biased = watermark.bias(tokens, revealed, logits, torch.tensor([step]))
        tokens[0, step] = biased[0].argmax(-1)
        revealed[0, step] = True
    detection = Detector(small_key, small_tokenizer, fpr=1e-4).detect(tokens[0].tolist())
    blind = order == "right to left" and strategy == "kgw"
    assert (detection.verdict.value == "watermarked") is not blind


@pytest.mark.parametrize("strategy", BIASES)
def test_neighbours_are_never_decided_at_once_where_a_strategy_has_two_passes(
    small_key, small_tokenizer, strategy
):
    watermark = Watermark(small_key, strategy, tokenizer=small_tokenizer)
    step = torch.tensor([[5, 9, 6, 4], [3, 8, -1, -1]])
    passes = [positions.tolist() for positions in watermark.passes(step)]
    if strategy.startswith(("expected", "fresh", "guided")):
        assert passes == [[[-1, -1, 6, 4], [-1, 8, -1, -1]], [[5, 9, -1, -1], [3, -1, -1, -1]]]
    else:
        assert passes == [step.tolist()]  # as in the paper
    assert [positions.tolist() for positions in watermark.passes(step[:, :1])] == [[[5], [3]]]


def test_wrong_settings_are_refused_with_a_reason(key, tokenizer, small_tokenizer):
    with pytest.raises(DllmarkError, match="choose one of kgw"):
        Watermark(key, "sideways")
    with pytest.raises(DllmarkError, match="from 0 to 1000"):
        Watermark(key, delta=-1.0)
    with pytest.raises(DllmarkError, match="top_k of at least 1"):
        Watermark(key, "expected-bidirectional", top_k=0)
    with pytest.raises(MismatchError, match="fingerprints differ"):
        Watermark(key, tokenizer=small_tokenizer)
    with pytest.raises(DllmarkError, match="pass the model's"):
        Watermark(HashedGreenList(key, 10))
    watermark = Watermark(key, tokenizer=tokenizer)
    tokens, revealed = torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(MismatchError, match="different models"):
        watermark.bias(tokens, revealed, torch.zeros(1, 4, 100), torch.tensor([[1]]))
    with pytest.raises(DllmarkError, match="not among those of the logits"):
        few = torch.tensor([[2, 3]])
        watermark.bias(tokens, revealed, torch.zeros(1, 2, 16_384), torch.tensor([[1]]), few)
    with pytest.raises(DllmarkError, match="say with `logit_positions`"):
        watermark.bias(tokens, revealed, torch.zeros(1, 2, 16_384), torch.tensor([[1]]))


def test_its_identity_is_the_keys(key, tokenizer):
    assert Watermark(key, tokenizer=tokenizer).identity == key.identity


def test_a_longer_head_than_vocabulary_is_marked_and_detected(tokenizer):
    """Models round their head up: LLaDA has 115 ids, Dream 400, that are no tokens."""
    key = WatermarkKey(Secret(b"x" * 16), 0.25, tokenizer.id)
    watermark = Watermark(key, "bidirectional", 2.0, tokenizer=tokenizer)
    logits = torch.zeros(1, 3, tokenizer.vocab_size + 115)
    tokens, revealed = torch.tensor([[9, 2, 11]]), torch.tensor([[True, False, True]])
    biased = watermark.bias(tokens, revealed, logits, torch.tensor([[1]]))[0, 0]
    torch.testing.assert_close(biased[tokenizer.vocab_size :], torch.full((115,), 2 * 0.25 * 2.0))
