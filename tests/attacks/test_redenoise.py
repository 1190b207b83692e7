"""Re-denoising: which tokens are filled in, in which batches, and how a run goes on."""

import pytest

from dllmark.attacks.records import Record
from dllmark.attacks.redenoise import redenoise

WORDS = " ".join(f"w{number}" for number in range(1, 21))


@pytest.fixture
def records():
    texts = [WORDS, "w1 w2 w3", "", WORDS, WORDS]
    return [Record(line, text, {"text": text}, "text") for line, text in enumerate(texts, 1)]


class Filler:
    """Puts the word w31 wherever it is asked to write, and remembers what it was asked."""

    def __init__(self, tokenizer):
        [self.word] = tokenizer.encode("w31")
        self.calls = []

    def __call__(self, texts, positions, *, seed):
        self.calls.append((len(texts), seed))
        results = [ids.copy() for ids in texts]
        for ids, at in zip(results, positions, strict=True):
            ids[at] = self.word
        return results


def test_a_share_of_the_tokens_of_each_text_is_filled_in(records, small_tokenizer):
    fill = Filler(small_tokenizer)
    for ratio in (0.0, 0.3, 1.0):
        done = dict(redenoise(records, records, small_tokenizer, fill, ratio, longest=20))
        assert sorted(done) == [0, 1, 2, 3, 4]
        for number, record in enumerate(records):
            before, after = record.text.split(), done[number].split()
            assert len(after) == len(before)
            new = [b for a, b in zip(before, after, strict=True) if a != b]
            assert new == ["w31"] * round(ratio * len(before))


def test_the_line_decides_which_and_the_seed(records, small_tokenizer):
    fill = Filler(small_tokenizer)

    def filled(seed):
        return dict(redenoise(records, records, small_tokenizer, fill, 0.5, longest=20, seed=seed))

    first = filled(0)
    assert first == filled(0) != filled(1)
    assert len({first[0], first[3], first[4]}) == 3


@pytest.mark.parametrize("present", range(5))
def test_what_is_missing_is_filled_in_the_batches_of_the_whole(records, small_tokenizer, present):
    whole, rest = Filler(small_tokenizer), Filler(small_tokenizer)
    expected = dict(redenoise(records, records, small_tokenizer, whole, 0.5, longest=20, batch=2))
    assert [count for count, _ in whole.calls] == [2, 1, 1]  # one text of the second is empty
    missing = records[present:]
    done = dict(redenoise(records, missing, small_tokenizer, rest, 0.5, longest=20, batch=2))
    assert done == {number: expected[number + present] for number in range(len(missing))}
    assert rest.calls == whole.calls[present // 2 :]


def test_each_batch_has_its_own_seed(records, small_tokenizer):
    fill = Filler(small_tokenizer)
    list(redenoise(records, records, small_tokenizer, fill, 0.5, longest=20, batch=1, seed=7))
    assert len({seed for _, seed in fill.calls}) == len(fill.calls) == 4


def test_texts_without_tokens_need_no_model(small_tokenizer):
    empty = [Record(1, "", {"text": ""}, "text")]
    fill = Filler(small_tokenizer)
    assert list(redenoise(empty, empty, small_tokenizer, fill, 0.5, longest=20)) == [(0, "")]
    assert fill.calls == []
