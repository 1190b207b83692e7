"""What attacks leave: every attack at every strength, scored as a naive computation scores it."""

import json
from itertools import pairwise

import numpy as np
import pytest

from dllmark.attacks.endpoint import GivenUp
from dllmark.attacks.tokens import TOKEN_ATTACKS, ordinary
from dllmark.detection.detector import Detector
from dllmark.errors import InputError
from dllmark.experiments import robustness
from dllmark.experiments.batches import LocalWriter
from dllmark.experiments.lab import Lab
from dllmark.experiments.rivals.schemes import SCHEMES
from dllmark.experiments.robustness import Adversary
from dllmark.experiments.settings import Dataset, Protocol, Setting
from dllmark.experiments.specs import Paraphraser

PROTOCOL = Protocol(samples=6, tokens=24, scored=20, block=8)
IN_A_FULL_RUN = robustness.ATTACKED
SCHEMES_HERE = ("kgw", "unigram", "lr-dwm", "dgmark")
SYNONYMS = {"w": ("v",)}  # of which every w1, w2 ... has one


def starred(records):
    """Paraphrase by one word more; the second text is refused."""
    for number, record in enumerate(records):
        yield number, GivenUp("no") if record.line == 2 else f"{record.text} w31"


PARAPHRASERS = {"paraphrase": Paraphraser({"name": "test"}, starred)}


@pytest.fixture(scope="module")
def lab(endless, tmp_path_factory):
    prompts = [f"w{number} w{number + 1}" for number in range(6)]
    truths = [" ".join(f"w{(n * k) % 30 + 1}" for n in range(80)) for k in range(1, 7)]
    datasets = [Dataset("C4", prompts, truths, False)]
    folder, writer = tmp_path_factory.mktemp("attacked"), LocalWriter(lambda: endless)
    return Lab("tiny", endless.tokenizer, datasets, folder, PROTOCOL, writer, batch_size=4)


@pytest.fixture(autouse=True, scope="module")
def _small():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ATTACKED": SCHEMES_HERE, "EDITED": (0.1, 0.4), "PASTED": (0.1, 0.5),
                            "REFILLED": (0.1, 0.5), "ROUNDS": 2}.items():  # fmt: skip
            patch.setattr(robustness, name, value)
        yield


@pytest.fixture(scope="module")
def full(lab, endless):
    """A report with every attack run."""
    adversary = Adversary(SYNONYMS, lambda: endless, PARAPHRASERS)
    return robustness.attacks(lab, adversary, 2, "low_confidence")


def row_of(report, *wanted):
    names = ("attack", "strength", "scheme")
    row, *_ = [row for row in report.rows if tuple(row[name] for name in names) == wanted]
    return row


def test_every_attack_is_reported_at_every_strength_for_every_scheme(full):
    plan = [("none", 0.0)]
    plan += [(name, ratio) for name in TOKEN_ATTACKS for ratio in (0.1, 0.4)]
    plan += [("synonyms", share) for share in (0.25, 0.5, 1.0)]
    plan += [(name, ratio) for name in ("paste", "redenoise") for ratio in (0.1, 0.5)]
    plan += [("paraphrase", 1), ("paraphrase", 2)]
    rows = [(row["attack"], row["strength"], row["scheme"], row["score"]) for row in full.rows]
    scored = [(scheme, score) for scheme in SCHEMES_HERE for score in SCHEMES[scheme].scores]
    assert ("dgmark", "windows of 8") in scored
    assert rows == [(*attack, *one) for attack in plan for one in scored]
    assert not any(row["texts"] == "not run" for row in full.rows)
    deltas = {row["scheme"]: row["δ"] for row in full.rows}
    assert deltas == {name: SCHEMES[name].delta or None for name in SCHEMES_HERE}
    assert (full.about["keys"], "scored" in full.about) == (2, False)
    assert {curve.panel for curve in full.curves} == {f"C4, {attack}" for attack, _ in plan[1:]}


def test_a_full_run_attacks_all_of_our_strategies_and_three_other_schemes():
    ours = {name for name, scheme in SCHEMES.items() if scheme.ours}
    assert set(IN_A_FULL_RUN) == ours | {"unigram", "lr-dwm", "dgmark"}


def test_schemes_that_are_named_are_attacked_alone(lab, full):
    named = ("dgmark", "kgw", "dgmark")
    report = robustness.attacks(lab, Adversary(), 1, "low_confidence", named)
    assert list(dict.fromkeys(row["scheme"] for row in report.rows)) == ["dgmark", "kgw"]
    with pytest.raises(InputError, match="no scheme 'kgv'"):
        robustness.attacks(lab, Adversary(), 1, "low_confidence", ("kgv",))


def test_attacks_that_are_named_are_made_alone(lab, full):
    adversary = Adversary()
    report = robustness.attacks(lab, adversary, 1, "low_confidence", ("kgw",), ("paste", "swap"))
    assert list(dict.fromkeys(row["attack"] for row in report.rows)) == ["none", "swap", "paste"]
    with pytest.raises(InputError, match="no attack 'burn': choose among delete"):
        robustness.attacks(lab, adversary, 1, "low_confidence", ("kgw",), ("burn",))


def test_what_is_not_given_is_said_not_to_have_run(lab):
    report = robustness.attacks(lab, Adversary(), 1, "low_confidence")
    not_run = {row["attack"] for row in report.rows if row["texts"] == "not run"}
    assert not_run == {"synonyms", "redenoise", "paraphrase"}


def test_a_row_is_what_a_naive_computation_finds(lab, full):
    dataset, tokenizer = lab.datasets[0], lab.tokenizer
    p_values, left, z = [], [], []
    for key in (0, 1):
        setting = Setting("kgw", temperature=0.8, order="low_confidence", key=key)
        detector = Detector(lab.key(0.5, key), tokenizer)
        for number, text in enumerate(lab.texts(dataset, setting)):
            ids = tokenizer.encode(text["text"])
            rng = np.random.default_rng([number, 40])
            edited = TOKEN_ATTACKS["substitute"](ids, 0.4, rng, ordinary(tokenizer))
            found = detector.detect(tokenizer.decode(edited))
            p_values.append(found.p_value)
            z.append(found.z)
            pairs = {tuple(pair) for pair in pairwise(text["ids"].tolist())}
            after = {tuple(pair) for pair in pairwise(edited.tolist())}
            left.append(len(pairs & after) / len(pairs))
    row = row_of(full, "substitute", 0.4, "kgw")
    assert row["TPR at 1 %"] == pytest.approx(100 * np.mean([p <= 0.01 for p in p_values]))
    assert row["TPR at 0.1 %"] == pytest.approx(100 * np.mean([p <= 0.001 for p in p_values]))
    assert row["mean z"] == pytest.approx(np.mean(z))
    assert row["pairs left, %"] == pytest.approx(100 * np.mean(left), abs=0.051)
    assert row["texts"] == 12


def test_stronger_attacks_leave_fewer_pairs(full):
    def left(attack, strength):
        return row_of(full, attack, strength, "kgw")["pairs left, %"]

    assert left("none", 0.0) > left("delete", 0.1) > left("delete", 0.4)
    assert left("none", 0.0) > left("redenoise", 0.1) > left("redenoise", 0.5)
    assert left("paste", 0.1) >= left("none", 0.0)  # the text is in there, whole


def test_diluted_texts_are_searched_where_a_scheme_counts_pairs(lab, full):
    searched = {
        (row["attack"], row["scheme"]) for row in full.rows if any("spans" in name for name in row)
    }
    assert searched == {("paste", "kgw")}


def test_the_best_stretch_of_a_marked_text_is_found(key, tokenizer, marked, plain):
    detector = Detector(key, tokenizer)
    found = robustness._best_span(detector, f"{plain} {marked} {plain}")
    assert found == min(span.p_value for span in detector.spans(f"{plain} {marked} {plain}"))
    assert found < 1e-6
    assert robustness._best_span(detector, plain) == 1


def test_each_round_rewrites_the_last_and_leaves_out_what_was_given_up(lab, full):
    for rounds in (1, 2):  # the texts of one key only
        assert row_of(full, "paraphrase", rounds, "kgw")["texts"] == 5
    first, second = (
        list(map(json.loads, next(lab.folder.glob(f"{name}/C4/kgw*")).read_text().splitlines()))
        for name in ("paraphrase", "paraphrase-2")
    )
    assert [line["text"] for line in second] == [f"{line['text']} w31" for line in first]
    assert [line["attack"]["line"] for line in second] == [1, 3, 4, 5, 6]


def test_a_second_report_needs_no_model_and_says_the_same(lab, full):
    def broken():
        raise AssertionError("everything was there")

    adversary = Adversary(SYNONYMS, broken, PARAPHRASERS)
    assert robustness.attacks(lab, adversary, 2, "low_confidence").rows == full.rows


@pytest.mark.parametrize(
    ("keys", "order", "reason"),
    [(0, "random", "at least 1 key is needed; got 0"), (1, "sideways", "no order 'sideways'")],
    ids=["keys", "order"],
)
def test_bad_settings_are_refused_before_anything_is_written(lab, keys, order, reason):
    with pytest.raises(InputError, match=reason):
        robustness.attacks(lab, Adversary(), keys, order)
