"""`no_repeat_ngram`: no sampler says the same twice, in whatever order it writes."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import END, PROMPTS, scripted_model, steps_of, tiny_model

from dllmark.errors import InputError
from dllmark.marking.watermark import Watermark
from dllmark.quality.repetition import repeated_ngrams
from dllmark.sampling.no_repeat import forbid_repeats
from dllmark.sampling.settings import Dream, Llada, Llada2, Parallel
from dllmark.sampling.texts import generate

VOCABULARY, TOKENS = 6, 48
ONE_A_STEP = [
    Llada(TOKENS, 16, 0.0),
    Llada(TOKENS, 16, 0.0, cache="block"),
    Llada(TOKENS, 16, 0.8, order="random"),
]
SEVERAL_A_STEP = [
    Llada(TOKENS // 4, 16, 0.0, apart=True),
    Dream(TOKENS // 2, temperature=0.0),
    Parallel(0.5, 16, 0.0),
]


def grams(tokens, text, size):
    """The n-grams of a text by where they begin, those with a gap left out."""
    starts = range(len(tokens) - size + 1)
    return {s: tuple(tokens[s : s + size]) for s in starts if all(text[s : s + size])}


def naive_repeats(tokens, text, position, size, edges):
    """Tokens that make an n-gram around a position which begins elsewhere too, and end no word."""
    begins, ends = edges
    left, right = position - 1, position + 1
    found = set()
    for token in range(VOCABULARY):
        new = [*tokens[:position], token, *tokens[position + 1 :]]
        all_of_them = grams(new, [*text[:position], True, *text[position + 1 :]], size)
        there = list(all_of_them.values())
        around = range(position - size + 1, position + 1)
        goes_on = left >= 0 and text[left] and ends[tokens[left]] and begins[token]
        goes_before = right < len(tokens) and text[right] and begins[tokens[right]] and ends[token]
        again = any(there.count(all_of_them.get(start)) > 1 for start in around)
        if (again and not goes_on and not goes_before) or twice(new, text, position, edges):
            found.add(token)
    return found


def twice(tokens, text, position, edges):
    """Whether a token at a position makes a word stand twice in a row, there or beside it."""
    begins, ends = edges

    def goes_on(after):
        return after < len(tokens) and text[after] and begins[tokens[after]]

    def word(token):
        return ends[token] and not begins[token]

    return any(
        first >= 0 and second < len(tokens) and text[first + second - position]
        and tokens[first] == tokens[second] and word(tokens[first]) and not goes_on(second + 1)
        for first, second in ((position - 1, position), (position, position + 1))
    )  # fmt: skip


EDGES = st.lists(st.booleans(), min_size=VOCABULARY, max_size=VOCABULARY)


@given(
    st.lists(st.tuples(st.integers(0, VOCABULARY - 1), st.booleans()), min_size=1, max_size=24),
    st.integers(2, 5),
    st.one_of(st.just([[False] * VOCABULARY] * 2), st.tuples(EDGES, EDGES)),
)
def test_a_token_is_forbidden_exactly_where_it_repeats_an_n_gram(places, size, edges):
    tokens, text = ([place[n] for place in places] for n in (0, 1))
    logits = torch.zeros(1, len(tokens), VOCABULARY + 1)
    forbid_repeats(
        logits, torch.tensor([tokens]), torch.tensor([text]), torch.arange(len(tokens)), size,
        torch.tensor(edges), never=VOCABULARY,
    )  # fmt: skip
    for position, row in enumerate(logits[0, :, :VOCABULARY]):
        forbidden = set(row.isinf().nonzero()[:, 0].tolist())
        assert forbidden == naive_repeats(tokens, text, position, size, edges)


def repetition(model, sampler, mark=None):
    """How much of the texts repeats 3-grams: the sum of their shares."""
    texts = generate(model, PROMPTS, mark, sampler, tokens=TOKENS, chat=False)
    return sum(repeated_ngrams(text.ids, 3) for text in texts)


@pytest.mark.parametrize(
    ("sampler", "name"),
    [*product(ONE_A_STEP, [None, "bidirectional"]), (ONE_A_STEP[0], "joint")],
)
def test_no_n_gram_stands_twice_in_a_text(endless, small_key, sampler, name):
    mark = Watermark(small_key, name, 2.0, tokenizer=endless.tokenizer) if name else None
    strict = replace(sampler, no_repeat_ngram=3)
    assert repetition(endless, strict, mark) == 0 < repetition(endless, sampler, mark)


def test_what_is_longer_than_the_text_cannot_be_repeated(endless):
    samplers = [replace(ONE_A_STEP[0], no_repeat_ngram=size) for size in (TOKENS, 10**12)]
    one, other = (
        [text.ids for text in generate(endless, PROMPTS, None, sampler, tokens=TOKENS, chat=False)]
        for sampler in samplers
    )
    assert one == other


@pytest.mark.parametrize("sampler", SEVERAL_A_STEP)
def test_where_a_step_writes_several_tokens_fewer_n_grams_do(endless, sampler):
    strict = replace(sampler, no_repeat_ngram=3)
    assert repetition(endless, strict) < repetition(endless, sampler)


def test_a_block_causal_model_does_not_repeat_itself_either(small_tokenizer):
    model = replace(tiny_model(small_tokenizer, block_causal=True), end_ids=())
    strict = Llada2(0.99, block_length=8, temperature=0.0, no_repeat_ngram=3)
    loose = replace(strict, no_repeat_ngram=0)
    assert repetition(model, strict) < repetition(model, loose)


def test_the_end_of_a_text_may_fill_all_that_is_left(small_tokenizer):
    likely = [{9: 0.9}, *({END: 0.9} for _ in range(11))]
    model = scripted_model(small_tokenizer, likely)
    sampler = Llada(12, 12, 0.0, no_repeat_ngram=2)
    [*_, last] = steps_of(model, sampler, None, ["w5"], 12)
    assert last.tokens[0, last.start :].tolist() == [9] + [END] * 11


def test_the_prompt_may_be_repeated(small_tokenizer):
    ids = small_tokenizer.encode("w8 w9 w8 w9")
    model = scripted_model(small_tokenizer, [{int(token): 0.9} for token in ids])
    sampler = Llada(4, 4, 0.0, order="left_to_right", no_repeat_ngram=2)
    [*_, last] = steps_of(model, sampler, None, ["w9"], 4)
    assert (last.tokens[0, last.start :].numpy() == ids).tolist() == [True, True, True, False]


@pytest.mark.parametrize("order", ["left_to_right", "low_confidence"])
def test_a_word_that_is_begun_may_be_finished(tokenizer, order):
    ids = tokenizer.encode(" knots, knots, knots").tolist()  # " kn", "ots", ",", …
    model = scripted_model(tokenizer, [{id_: 0.9} for id_ in ids])
    [*_, last] = steps_of(model, Llada(8, 8, 0.0, order=order, no_repeat_ngram=2), None, ["The"], 8)
    written = last.tokens[0, last.start :].tolist()
    assert (ids[0], ids[1]) in pairwise(written[2:])
    assert repeated_ngrams(written, 3) == 0 < repeated_ngrams(ids, 3)


@pytest.mark.parametrize("order", ["left_to_right", "low_confidence"])
def test_no_word_stands_twice_in_a_row(tokenizer, order):
    ids = tokenizer.encode(" the the the. in inert").tolist()  # … " in", " in", "ert"
    model = scripted_model(tokenizer, [{id_: 0.9} for id_ in ids])
    sampler = Llada(len(ids), len(ids), 0.0, order=order, no_repeat_ngram=5)
    [*_, last] = steps_of(model, sampler, None, ["The"], len(ids))
    written = last.tokens[0, last.start :].tolist()
    doubled = [left for left, right in pairwise(written) if left == right]
    assert doubled == ([] if order == "left_to_right" else [ids[4]])  # a longer word may begin so


@pytest.mark.parametrize("sampler", [Llada, Dream, Parallel, Llada2])
@pytest.mark.parametrize("size", [1, -2])
def test_a_size_that_no_text_can_keep_to_is_refused(sampler, size):
    with pytest.raises(InputError, match="no_repeat_ngram is 0"):
        sampler(no_repeat_ngram=size)
