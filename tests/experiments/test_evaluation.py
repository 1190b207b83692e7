"""The numbers of `dllmark report` are those of naive counts and of scipy; its words follow them."""

import json
from collections import Counter
from math import comb
from statistics import median

import numpy as np
import pytest
from samples import marked_text, plain_text
from scipy import stats

from dllmark.attacks.tokens import delete, ordinary
from dllmark.detection.detector import Detector
from dllmark.errors import InputError, MismatchError
from dllmark.experiments.evaluation import measures
from dllmark.experiments.evaluation.attacks import OFFLINE, Withstood, withstood
from dllmark.experiments.evaluation.cost import Cost, StepTime, compared, repetition
from dllmark.experiments.evaluation.inputs import (
    Sample,
    paired,
    read_attacked,
    read_marked,
    read_nulls,
    read_unmarked,
)
from dllmark.experiments.evaluation.measures import (
    OWN,
    Rate,
    RateAt,
    detections,
    false_positives,
    needed,
)
from dllmark.experiments.evaluation.run import _step_time, given_texts
from dllmark.experiments.evaluation.words import alarms_of, can_be_said, conclude, not_tested, of
from dllmark.experiments.runs import Written
from dllmark.experiments.settings import Setting

NOTHING = Cost(0, None, None, None, None, None, None, None, ())


@pytest.fixture(scope="module")
def detector(key, tokenizer):
    return Detector(key, tokenizer, fpr=0.05)


@pytest.fixture(scope="module")
def plains(tokenizer):
    texts = [plain_text(tokenizer, 30 + 5 * number, number) for number in range(24)]
    return [f"{texts[0]}\n", *texts[1:]]  # a line end is never scored


@pytest.fixture(scope="module")
def marks(key, tokenizer):
    return [marked_text(key, tokenizer, 130, number, 0.75) for number in range(8)]


def naive_rate(detector, texts, length, nominal):
    """Hits and texts, one text at a time."""
    if length is None:
        p = [detector.detect(text).p_value for text in texts]
    else:
        cut = [detector.tokenizer.encode(text.strip("\n"))[:length] for text in texts]
        p = [detector.detect(ids).p_value for ids in cut if len(ids) == length]
    return sum(one <= nominal for one in p), len(p)


@pytest.mark.parametrize(
    ("hits", "count"), [(0, 1), (0, 40), (3, 7), (39, 40), (40, 40), (2, 9999)]
)
def test_intervals_are_scipys(hits, count):
    rate = Rate.of(hits, count)
    expected = stats.binomtest(hits, count).proportion_ci(method="exact")
    assert (rate.low, rate.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert rate.share == hits / count


def test_false_positives_are_those_of_a_naive_count(detector, plains):
    families = {"a": plains[:10], "b": plains[10:]}
    result = false_positives(detector, families, [])
    assert result.texts == 24
    assert {one.nominal for one in result.rates} == {0.05, 0.01, 0.001, 0.0001}
    assert {one.tokens for one in result.rates} == {None, 50, 100}
    for one in result.rates:
        expected = naive_rate(detector, plains, one.tokens, one.nominal)
        assert (one.found.hits, one.found.count) == expected


def test_the_worst_family_is_the_one_that_chance_explains_least(detector, key, tokenizer, plains):
    accused = [marked_text(key, tokenizer, 60, number) for number in range(3)]
    families = {"fine": plains, "bad": [*accused, *plains[:7]], "tiny": [plains[0]]}
    result = false_positives(detector, families, plains[:5])
    verdict = conclude("k", 0.05, result, detections(detector, accused * 2), NOTHING, [])
    assert f"but of the family “bad” {of(result.families[0].found)}, more than" in verdict.text
    assert result.families[0].family == "bad"
    assert {one.family for one in result.families} == {"fine", "bad", "tiny", OWN}
    worst = result.families[0].found
    assert (worst.hits >= 3, worst.count) == (True, 10)
    tail = stats.binom.sf(worst.hits - 1, worst.count, 0.05)
    assert result.worst_by_chance == pytest.approx(1 - (1 - tail) ** 4)
    assert result.texts == 35  # the model's own texts are no nulls
    assert alarms_of(result, 0.05) == "one family more than stated"


def test_texts_too_short_to_tell_are_left_out_and_counted(detector, plains):
    result = false_positives(detector, {"a": [*plains, "Too short."]}, ["Short too."])
    assert (result.texts, result.left_out_short) == (24, 1)
    assert [one.family for one in result.families] == ["a"]
    with pytest.raises(InputError, match="none of the 2 nulls has 25 tokens: give longer texts"):
        false_positives(detector, {"a": ["Too short.", "This too."]}, [])


def test_chunks_do_not_change_the_count(detector, plains, monkeypatch):
    whole, told = false_positives(detector, {"a": plains}, []), []
    monkeypatch.setattr(measures, "CHUNK", 5)
    again = false_positives(detector, {"a": plains}, [], lambda *done: told.append(done))
    assert again == whole
    assert told == [(5, 24), (10, 24), (15, 24), (20, 24), (24, 24)]


def test_power_and_curve_are_those_of_a_naive_count(detector, marks):
    result = detections(detector, marks)
    assert {one.tokens for one in result.power} == {50, 100}
    for one in (*result.power, *result.curve[::4]):
        expected = naive_rate(detector, marks, one.tokens, one.nominal)
        assert (one.found.hits, one.found.count) == expected
    lengths = [len(detector.tokenizer.encode(text)) for text in marks]
    assert (result.median_tokens, result.longest) == (median(lengths), max(lengths))
    found = [detector.detect(text) for text in marks]
    p = [one.p_value for one in found]
    assert list(result.strengths.values()) == [
        sum(one <= 1e-10 for one in p), sum(1e-10 < one <= 1e-4 for one in p),
        sum(1e-4 < one <= 0.05 for one in p), sum(one > 0.05 for one in p),
    ]  # fmt: skip
    green, pairs = sum(one.green for one in found), sum(one.pairs for one in found)
    assert result.green_share == green / pairs


def test_the_length_needed_holds_for_all_that_are_longer():
    shares = [(10, 2), (20, 20), (30, 18), (40, 19), (50, 20), (60, 20)]
    curve = [RateAt(tokens, 0.01, Rate.of(hits, 20)) for tokens, hits in shares]
    assert needed(curve, 0.95).tokens == 40
    assert needed(curve, 0.99).tokens == 50
    assert needed(curve, 0.95).assured is None  # 20 of 20 may still be 83 %
    sure = [RateAt(10, 0.01, Rate.of(200, 200))]
    assert needed(sure, 0.95) == measures.Needed(0.95, 10, 10)
    assert needed(curve[:1], 0.95).tokens is None


def test_marked_texts_that_are_short_say_what_to_do(detector, marks):
    with pytest.raises(InputError, match=r"4 of 6 marked texts have 50 tokens, too few .* longer"):
        detections(detector, [*marks[:4], "Too short.", ""])


@pytest.mark.parametrize("count", [6, 12, 41])
def test_the_interval_of_a_median_covers_it(count):
    rng = np.random.default_rng(count)
    before, after = rng.random(count) + 1, rng.random(count) + 1
    result = compared(before, after, ratio=True)
    ratios = sorted(after / before)
    assert (result.unmarked, result.marked) == (median(before), median(after))
    assert result.change == pytest.approx(median(ratios))
    low, high = ratios.index(result.low), ratios.index(result.high)
    # The true median is missed if no more than `low` values lie below it, or more than `high`.
    missed = [k for k in range(count + 1) if k <= low or k > high]
    assert sum(comb(count, k) for k in missed) / 2**count <= 0.05


def test_too_few_pairs_have_no_interval_and_missing_values_no_part():
    nan = float("nan")
    result = compared(np.array([1.0, 2.0, nan]), np.array([2.0, nan, 3.0]), ratio=False)
    assert (result.pairs, result.change, result.low, result.high) == (1, 1.0, None, None)
    assert compared(np.array([nan]), np.array([1.0]), ratio=True) is None


def test_degenerate_texts_are_counted_by_their_4_grams(tokenizer, plains):
    looping = "round and round we go " * 10
    pairs = [(Sample(plains[0], "p"), Sample(looping, "p")), (Sample(plains[1]), Sample(plains[2]))]
    two, four, clean, marked = repetition(tokenizer, pairs)

    def naive(text, n):
        ids = tokenizer.encode(text).tolist()
        grams = Counter(tuple(ids[at : at + n]) for at in range(len(ids) - n + 1))
        return 1 - len(grams) / sum(grams.values())

    assert naive(looping, 4) > 0.2
    assert (clean.hits, marked.hits, marked.count) == (0, 1, 2)
    for n, result in ((2, two), (4, four)):
        assert result.marked == pytest.approx(median(naive(p[1].text, n) for p in pairs))
        changes = [naive(p[1].text, n) - naive(p[0].text, n) for p in pairs]
        assert result.change == pytest.approx(median(changes))
    assert repetition(tokenizer, []) == (None, None, None, None)


def written(setting, texts, seconds, batch=4, hardware="one"):
    """A note of texts that were written."""
    return Written(
        "p", setting.slug, texts, seconds, "m", 64, False, 32, batch, hardware, "", "", ""
    )


def test_a_step_is_timed_where_all_texts_were_written_alike():
    mark = Setting("kgw", per_step=2)
    notes = [
        written(mark.unmarked, 7, 64.0), written(mark, 4, 64.0), written(mark, 3, 64.0),
    ]  # fmt: skip
    assert _step_time(notes, mark, 32) == StepTime(1.0, 2.0, 4, "one")  # two batches each
    assert _step_time(notes[1:], mark, 32) is None
    assert _step_time([*notes, written(mark, 4, 1.0, hardware="two")], mark, 32) is None
    assert _step_time([*notes, written(mark, 4, 1.0, batch=2)], mark, 32) is None


def test_attacks_leave_what_a_naive_attack_leaves(detector, marks, plains):
    rows = withstood(detector, marks, plains)
    assert {row.attack for row in rows} == set(OFFLINE)
    row = next(row for row in rows if row.name == "delete 30 %")
    tokenizer = detector.tokenizer
    hits = 0
    for line, text in enumerate(marks):
        rng = np.random.default_rng([line, 30])
        ids = delete(tokenizer.encode(text), 0.3, rng, ordinary(tokenizer))
        hits += detector.detect(tokenizer.decode(ids)).p_value <= 0.05
    assert (row.found.hits, row.found.count) == (hits, 8)
    hidden = next(row for row in rows if row.name == "zero-width 30 %")
    assert hidden.found.share < hidden.normalized.share == hidden.best.share
    assert row.normalized is None
    without = withstood(detector, marks[:2], ["few words"])
    assert "paste" not in {row.attack for row in without}


def test_attacks_made_elsewhere_are_scored_too(detector, marks, plains, tmp_path):
    path = tmp_path / "p.jsonl"
    attack = {"name": "paraphrase", "model": "m", "line": 1, "after": {"name": "swap"}}
    path.write_text("".join(json.dumps({"text": t, "attack": attack}) + "\n" for t in plains[:6]))
    attacked, file = read_attacked(str(path))
    [row, *_] = withstood(detector, marks, plains, [attacked])
    assert (row.name, row.found.count) == ("paraphrase by m after swap", 6)
    assert file.rows == 6
    path.write_text('{"text": "a"}\n')
    with pytest.raises(InputError, match='no "attack" with a "name"'):
        read_attacked(str(path))
    lines = [{"text": "a", "attack": {"name": name}} for name in ("swap", "case")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match="holds several attacks: give a file for each"):
        read_attacked(str(path))


@pytest.mark.parametrize(
    ("nominal", "hits", "count", "said"),
    [
        (0.0001, 0, 1000, "below 0.3 % (rule of three); 0.01 % takes 30,000"),
        (0.01, 0, 2, "no hit in 2 shows a rate below 100 %"),
        (0.01, 1, 100, "consistent with what is stated"),
        (0.01, 0, 400, "fewer than stated"),
        (0.01, 20, 400, "more than stated"),
    ],
)
def test_so_many_texts_can_say_so_much(nominal, hits, count, said):
    assert said in can_be_said(nominal, Rate.of(hits, count))


def test_the_rule_of_three_is_the_bound_that_it_stands_for():
    bound = 1 - 0.05 ** (1 / 1000)  # the largest rate that has no hit in 1,000 in 5 % of cases
    assert bound == pytest.approx(3 / 1000, rel=0.01)


def verdict_of(shares, count, null_hits=0, nulls=300):
    """The verdict on a curve of shares at 100, 200 and 300 tokens, and on some nulls."""
    curve = tuple(
        RateAt(tokens, 0.01, Rate.of(round(share * count), count))
        for tokens, share in zip((100, 200, 300), shares, strict=True)
    )
    found = measures.Detections(
        count,
        300.0,
        300,
        {},
        0.7,
        curve,
        curve,
        tuple(needed(curve, share) for share in measures.SHARES),
    )
    alarm = Rate.of(null_hits, nulls)
    whole = (RateAt(None, 0.01, alarm),)
    family = (measures.FamilyRate("web", alarm),)
    alarms = measures.FalsePositives(nulls, 0, whole, whole, family, 1.0)
    attacks = [Withstood("swap", 0.1, Rate.of(1, 2), None)]
    return conclude("k", 0.01, alarms, found, NOTHING, attacks)


@pytest.mark.parametrize(
    ("shares", "count", "reliability", "said"),
    [
        ((0.5, 1, 1), 100, "reliable", "detects reliably in texts of 200 tokens or more"),
        ((0.5, 0.95, 1), 100, "reliable", "detects reliably in texts of 300 tokens or more"),
        ((0.5, 1, 1), 12, "too few texts", "may or may not detect reliably"),
        ((0.5, 0.9, 0.8), 10, "too few texts", "the texts are too few to show it"),
        ((0.5, 0.6, 0.7), 10, "not reliable", "does not detect reliably: of texts cut to 300"),
        ((1, 1, 0.8), 100, "not reliable", "does not detect reliably"),
    ],
)
def test_the_verdict_follows_the_numbers(shares, count, reliability, said):
    verdict = verdict_of(shares, count)
    assert verdict.reliability == reliability
    assert said in verdict.text
    assert f"cut to 300 tokens it found {round(shares[2] * count)} of {count}" in verdict.text
    assert ("swap 10 %" in verdict.text) == (reliability != "not reliable")
    assert "What the mark costs was not measured." in verdict.text


def test_a_mark_that_accuses_too_often_is_said_to():
    verdict = verdict_of((1, 1, 1), 100, null_hits=30)
    assert verdict.false_alarms == "more than stated"
    assert "accuses too often: 30 of 300 (10 %" in verdict.text
    assert verdict_of((1, 1, 1), 100).false_alarms == "as stated"


def test_nulls_of_one_family_are_said_to_be(detector, plains, marks):
    found = detections(detector, marks)
    for families, alone in (({"a": plains}, True), ({"a": plains[:9], "b": plains[9:]}, False)):
        nulls = false_positives(detector, families, plains[:3])
        lines = not_tested(nulls, found, NOTHING, [], from_files=False)
        assert ("Other families of unmarked texts: all nulls are of one family." in lines) == alone


def test_few_nulls_do_not_show_that_a_rate_is_kept():
    verdict = verdict_of((1, 1, 1), 100, nulls=299)
    assert verdict.false_alarms == "too few texts"
    assert "to show the stated rate takes 300 such texts" in verdict.text


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_family_is_a_kind_else_a_source_else_the_file(tmp_path):
    rows = [{"text": "a", "kind": kind, "source": "s"} for kind in ("x", "y", "x", "y")]
    each = [{"text": "b", "source": f"page {number}"} for number in range(4)]
    few = [{"text": "c", "source": "s"}, {"text": "d", "source": "s"}, "e", {"text": "f"}]
    sources = [{"text": "g", "source": "t"}, {"text": "h", "source": "t"}]
    names = ("kinds", "each", "few", "sources")
    paths = [lines(tmp_path / f"{name}.jsonl", content)
             for name, content in zip(names, (rows, each, few, sources), strict=True)]  # fmt: skip
    families, files = read_nulls(paths)
    assert {name: len(texts) for name, texts in families.items()} == {
        "x": 2, "y": 2, "each.jsonl": 4, "few.jsonl": 4, "t": 2}  # fmt: skip
    assert [file.rows for file in files] == [4, 4, 4, 2]


def test_texts_on_the_wrong_side_are_refused(key, tmp_path):
    identity = key.identity.to_dict()
    mark = lines(tmp_path / "m.jsonl", [{"text": "a", "watermark": identity}])
    clean = lines(tmp_path / "c.jsonl", [{"text": "a", "watermark": None}])
    other = lines(tmp_path / "o.jsonl", [{"text": "a", "watermark": identity | {"key_id": "no"}}])
    assert read_marked(mark, key.identity)[0] == [Sample("a")]
    with pytest.raises(InputError, match=r"m.jsonl:1: this text is marked; nulls are texts witho"):
        read_nulls([mark])
    with pytest.raises(InputError, match=r"m.jsonl:1: this text is marked; give it with --marked"):
        read_unmarked(mark)
    with pytest.raises(InputError, match=r"c.jsonl:1: .* carries no mark; give it with --unmarked"):
        read_marked(clean, key.identity)
    with pytest.raises(MismatchError, match=r"o.jsonl:1: the text was marked with key_id 'no'"):
        read_marked(other, key.identity)
    with pytest.raises(InputError, match="by their hashes: give files, not -"):
        read_nulls(["-"])


def test_texts_are_paired_by_their_prompts_in_order():
    marked = [Sample("m1", "p"), Sample("m2", "p"), Sample("m3", "q"), Sample("m4")]
    unmarked = [Sample("u1", "p"), Sample("u2"), Sample("u3", "r"), Sample("u4", "p")]
    assert [(u.text, m.text) for u, m in paired(marked, unmarked)] == [("u1", "m1"), ("u4", "m2")]


@pytest.mark.parametrize(
    ("marked", "unmarked", "reason"),
    [
        ("p", [], "no unmarked texts of the model were given"),
        (None, [Sample("u", "p")], "the marked texts have no prompts"),
        ("p", [Sample("u")], "the unmarked texts have no prompts"),
        ("p", [Sample("u", "q")], "no prompt of a marked text is one of an unmarked text"),
    ],
)
def test_why_nothing_can_be_compared_is_said(marked, unmarked, reason):
    texts = given_texts([Sample("m", marked)] * 5, unmarked, {}, "never loaded")
    assert any(reason in line for line in texts.why_not)
    assert texts.perplexity is None
