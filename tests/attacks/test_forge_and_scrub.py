"""Forging and scrubbing with stolen colours: what a detector makes of the results."""

from itertools import pairwise

import numpy as np
import pytest
from thieves import texts_of

from dllmark.attacks.forge import forge
from dllmark.attacks.ngrams import NGrams
from dllmark.attacks.scrub import scrub
from dllmark.attacks.steal import Estimates, count_texts, estimate
from dllmark.detection.detector import Detector
from dllmark.errors import InputError
from dllmark.relation.greenlist import HashedGreenList


@pytest.fixture(scope="module")
def green(key, tokenizer):
    return HashedGreenList(key, tokenizer.vocab_size)


@pytest.fixture(scope="module")
def table(tokenizer):
    """What follows what in the thief's own texts: everything."""
    return NGrams(texts_of(tokenizer, 300, 1), tokenizer.vocab_size)


@pytest.fixture(scope="module")
def stolen(tokenizer, green):
    marked, unmarked = texts_of(tokenizer, 300, 2, green), texts_of(tokenizer, 300, 3)
    return estimate(count_texts(marked, tokenizer), count_texts(unmarked, tokenizer))


@pytest.fixture(scope="module")
def nothing(tokenizer):
    return Estimates(np.zeros(0, dtype=np.int64), np.zeros(0), tokenizer.vocab_size)


def random(seed=0):
    return np.random.default_rng(seed)


def test_texts_forged_from_many_texts_are_accepted(stolen, table, key, tokenizer):
    forged = [tokenizer.decode(ids) for ids in forge(stolen, table, 20, 100, random())]
    p_values = [one.p_value for one in Detector(key, tokenizer).detect_many(forged)]
    assert max(p_values) < 1e-6


def test_texts_forged_from_nothing_are_accepted_at_the_rate(nothing, table, key, tokenizer):
    forged = list(forge(nothing, table, 200, 100, random()))
    hits = [one.p_value <= 0.05 for one in Detector(key, tokenizer).detect_many(forged)]
    assert sum(hits) <= 20  # 10 are expected, more than 20 in one of a thousand runs


def test_a_forged_text_only_has_pairs_of_the_texts_it_follows(stolen, tokenizer):
    texts = texts_of(tokenizer, 5, 4)
    seen = {pair for text in texts for pair in pairwise(text.tolist())}
    [ids] = forge(stolen, NGrams(texts, tokenizer.vocab_size), 1, 60, random())
    assert set(pairwise(ids.tolist())) <= seen


def test_forging_depends_on_the_seed(stolen, table):
    first, same, other = (forge(stolen, table, 2, 30, random(n)).tolist() for n in (1, 1, 2))
    assert first == same != other


def test_stolen_colours_remove_more_than_blind_changes(
    stolen, nothing, table, green, key, tokenizer
):
    marked = texts_of(tokenizer, 10, 5, green)
    detector = Detector(key, tokenizer)

    def mean_z(estimates, ratio):
        texts = [scrub(ids, ratio, estimates, table, random()) for ids in marked]
        return np.mean([one.z for one in detector.detect_many(texts)])

    untouched = mean_z(stolen, 0.0)
    assert untouched == np.mean([one.z for one in detector.detect_many(marked)])
    assert untouched > mean_z(nothing, 0.2) > mean_z(stolen, 0.2) + 1
    assert mean_z(stolen, 0.5) < 0


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5])
def test_scrubbing_changes_the_share_it_is_told(stolen, table, green, tokenizer, ratio):
    [ids] = texts_of(tokenizer, 1, 6, green)
    before = ids.copy()
    changed = scrub(ids, ratio, stolen, table, random())
    assert (changed != ids).sum() == round(ratio * len(ids))
    assert ids.tolist() == before.tolist()


def test_a_token_without_a_substitute_stays(nothing):
    table = NGrams([np.array([1, 2, 3, 1, 4, 3])], vocab_size=nothing.vocab_size)
    assert scrub(np.array([1, 2, 3]), 1.0, nothing, table, random()).tolist() == [1, 4, 3]
    assert scrub(np.array([7, 8, 9]), 1.0, nothing, table, random()).tolist() == [7, 8, 9]


def test_scrubbing_depends_on_the_seed(nothing, table, tokenizer):
    [ids] = texts_of(tokenizer, 1, 7)
    first, same, other = (
        scrub(ids, 0.2, nothing, table, random(seed)).tolist() for seed in (1, 1, 2)
    )
    assert first == same != other


def test_the_share_to_scrub_is_a_share(nothing, table):
    with pytest.raises(InputError, match="from 0 to 1; got 2"):
        scrub(np.array([1, 2, 3]), 2, nothing, table, random())
