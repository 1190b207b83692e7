"""What attacks leave of a mark: every scheme, every attack, every strength, on the same texts.

The texts are those that `rivals` compares at temperature 0.8, one token a step. Whole texts are
attacked, and tokenised again, as a detector would get them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from dllmark.attacks.characters import paste
from dllmark.attacks.records import Answers
from dllmark.attacks.records import Record as Text
from dllmark.attacks.redenoise import redenoise
from dllmark.attacks.synonyms import Synonyms, replace_synonyms
from dllmark.attacks.tokens import TOKEN_ATTACKS, token_edit
from dllmark.detection.detector import Detector, scored_text
from dllmark.errors import InputError
from dllmark.experiments.lab import Lab
from dllmark.experiments.report import Curve, Report, Row
from dllmark.experiments.rivals.compare import TEMPERATURE, ways
from dllmark.experiments.rivals.measures import rate_cells
from dllmark.experiments.rivals.schemes import Scheme, find_scheme
from dllmark.experiments.settings import Dataset, Setting
from dllmark.experiments.specs import Paraphraser, rewrite, start_report
from dllmark.marking.strategies import STRATEGIES
from dllmark.relation.tokenizer import Ids

if TYPE_CHECKING:
    from dllmark.models.loading import Model

ATTACKS = (*TOKEN_ATTACKS, "synonyms", "paste", "redenoise", "paraphrase")

ATTACKED = (*STRATEGIES, "unigram", "lr-dwm", "dgmark")
"""The schemes whose texts are attacked where none are named."""

EDITED = (0.1, 0.2, 0.3, 0.4)
SYNONYM_SHARES = (0.25, 0.5, 1.0)
PASTED = REFILLED = (0.1, 0.2, 0.3, 0.4, 0.5)
ROUNDS = 5
"""As many paraphrases in a row as Chainwash makes (arXiv 2605.05503)."""

RATES = (0.01, 0.001)
"""The p-values at which a text is taken for marked."""

TPR = "TPR at {:g} %"
BY_SPANS = "by spans at {:g} %"

Change = Callable[[str, np.random.Generator], str]


@dataclass(frozen=True)
class Adversary:
    """What attacks need beside the texts; an attack that lacks something is not run.

    `model` loads the diffusion model that fills in masks.
    """

    synonyms: Synonyms | None = None
    model: Callable[[], Model] | None = None
    paraphrasers: dict[str, Paraphraser | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Attacked:
    """Texts of one key after an attack of some strength, by the number of their prompt."""

    attack: str
    strength: float
    texts: dict[int, str] = field(default_factory=dict)


def attacks(
    lab: Lab,
    adversary: Adversary,
    keys: int,
    order: str,
    names: Collection[str] = (),
    only: Collection[str] = ATTACKS,
) -> Report:
    """Detection after every attack, or only after some, by each scheme's own p-value."""
    if keys < 1:
        raise InputError(f"at least 1 key is needed; got {keys}")
    check_attacks(only)
    [way] = ways(order, quick=True)
    schemes = [find_scheme(name) for name in dict.fromkeys(names or ATTACKED)]
    settings = [(scheme, way.marked(scheme, 1.0, keys)) for scheme in schemes]
    axes = ("strength of the attack", TPR.format(100 * RATES[0]))
    title = f"What attacks leave: {way.name}"
    written = chain(*(by_key for _, by_key in settings))
    report = start_report(lab, title, written, axes, any_length=True)
    for unused in ("most_repeats", "scored"):
        del report.about[unused]
    report.about["keys"] = keys
    for dataset in lab.datasets:
        columns = [
            list(_rows(lab, dataset, scheme, by_key, adversary, only))
            for scheme, by_key in settings
        ]
        for same_attack in zip(*columns, strict=True):
            report.rows += chain(*same_attack)
    report.curves = _curves(report.rows)
    return report


def check_attacks(names: Collection[str]) -> None:
    """Raise `InputError` unless there are attacks of these names.

    >>> check_attacks(["paste", "redenoise"])
    """
    if unknown := set(names) - set(ATTACKS):
        raise InputError(f"no attack {min(unknown)!r}: choose among {', '.join(ATTACKS)}")


def _rows(
    lab: Lab,
    dataset: Dataset,
    scheme: Scheme,
    settings: list[Setting],
    adversary: Adversary,
    only: Collection[str],
) -> Iterator[list[Row]]:
    """Yield what is found of one scheme's texts, of all keys, after each attack: a row a score."""
    plans = [_attacked(lab, dataset, setting, adversary, only) for setting in settings]
    for by_key in zip(*plans, strict=True):
        row: Row = {"prompts": dataset.name, "attack": by_key[0].attack,
                    "strength": by_key[0].strength, "scheme": scheme.name, "score": None,
                    "δ": settings[0].delta if scheme.delta else None}  # fmt: skip
        count = sum(len(done.texts) for done in by_key)
        if count:
            yield [
                row | {"score": score, "texts": count}
                | _found(lab, dataset, scheme, score, settings, by_key)
                for score in scheme.scores
            ]  # fmt: skip
        else:
            yield [row | {"score": score, "texts": "not run"} for score in scheme.scores]


def _found(
    lab: Lab,
    dataset: Dataset,
    scheme: Scheme,
    score: str,
    settings: list[Setting],
    by_key: tuple[Attacked, ...],
) -> Row:
    """Return what the keys find in attacked texts, and how many pairs of the old texts are left."""
    scorer = scheme.scores[score]
    shape = (len(settings), len(dataset.prompts))
    left, z, p_value = (np.full(shape, np.nan) for _ in range(3))
    best_span = np.full(shape, np.nan)
    for at, (setting, done) in enumerate(zip(settings, by_key, strict=True)):
        key, before = lab.key(setting.gamma, setting.key), lab.texts(dataset, setting)
        numbers = list(done.texts)
        encoded = lab.tokenizer.encode_many([scored_text(text) for text in done.texts.values()])
        evidence = scorer(key, lab.tokenizer)(encoded)
        z[at, numbers] = [one.z for one in evidence]
        p_value[at, numbers] = [one.p_value for one in evidence]
        left[at, numbers] = [
            _pairs_left(before[number]["ids"], ids)
            for number, ids in zip(numbers, encoded, strict=True)
        ]
        if done.attack == "paste" and score == "green pairs":
            detector = Detector(key, lab.tokenizer)
            best_span[at, numbers] = [_best_span(detector, text) for text in done.texts.values()]
    row: Row = {"pairs left, %": round(100 * float(np.nanmean(left)), 1),
                "mean z": float(np.nanmean(z))}  # fmt: skip
    for label, values in ((TPR, p_value), (BY_SPANS, best_span)):
        for rate in RATES:
            hits = np.where(np.isnan(values), np.nan, values <= rate)
            row |= rate_cells(label.format(100 * rate), hits)
    return row


def _best_span(detector: Detector, text: str) -> float:
    """Return the smallest p-value of a stretch of the text, 1 where none is below the largest."""
    spans = detector.spans(text, fpr=max(RATES))
    return min((span.p_value for span in spans), default=1.0)


def _attacked(
    lab: Lab, dataset: Dataset, setting: Setting, adversary: Adversary, only: Collection[str]
) -> Iterator[Attacked]:
    """Yield the texts of one key, then after each attack, in an order that is always the same."""
    texts = {number: text["text"] for number, text in enumerate(lab.texts(dataset, setting))}
    yield Attacked("none", 0.0, texts)
    yield from _edited(lab, texts, adversary, only)
    if "redenoise" in only:
        yield from _refilled(lab, dataset, setting, adversary)
    if "paraphrase" in only:
        yield from _paraphrased(lab, dataset, setting, adversary)


def _edited(
    lab: Lab, texts: dict[int, str], adversary: Adversary, only: Collection[str]
) -> Iterator[Attacked]:
    """Yield texts after each attack that takes no model."""

    def edited(attack: str, strength: float, change: Change | None) -> Attacked:
        if change is None:
            return Attacked(attack, strength)
        return Attacked(attack, strength, {
            number: change(text, np.random.default_rng([number, round(100 * strength)]))
            for number, text in texts.items()
        })  # fmt: skip

    humans = [text for dataset in lab.datasets for text in dataset.truths]
    for name in TOKEN_ATTACKS:
        for ratio in EDITED if name in only else ():
            yield edited(name, ratio, token_edit(name, ratio, lab.tokenizer))
    for ratio in SYNONYM_SHARES if "synonyms" in only else ():
        words = adversary.synonyms
        yield edited("synonyms", ratio, None if words is None else _with_synonyms(ratio, words))
    for ratio in PASTED if "paste" in only else ():
        yield edited("paste", ratio, _pasted(ratio, humans))


def _with_synonyms(ratio: float, synonyms: Synonyms) -> Change:
    return lambda text, rng: replace_synonyms(text, ratio, rng, synonyms)


def _pasted(ratio: float, humans: list[str]) -> Change:
    return lambda text, rng: paste(text, ratio, rng, humans)


def _refilled(
    lab: Lab, dataset: Dataset, setting: Setting, adversary: Adversary
) -> Iterator[Attacked]:
    """Yield texts after each share of them was filled in again; they are kept in files."""
    for ratio in REFILLED:
        if adversary.model is None:
            yield Attacked("redenoise", ratio)
            continue
        attack = {"name": "redenoise", "ratio": ratio, "model": lab.model,
                  "temperature": TEMPERATURE, "batch": lab.batch_size}  # fmt: skip
        path = lab.folder / f"redenoise-{ratio:g}" / dataset.name / f"{setting.slug}.jsonl"
        filler = partial(_filler, adversary.model, ratio, lab.batch_size)
        texts = lab.texts(dataset, setting)
        new = rewrite(texts, list(range(len(texts))), path, attack, filler)
        yield Attacked("redenoise", ratio, new)


def _filler(load: Callable[[], Model], ratio: float, batch: int, records: list[Text]) -> Answers:
    """Return who fills in a share of those of the records that are missing."""

    def answers(missing: list[Text]) -> Iterator[tuple[int, str]]:
        if missing:
            from dllmark.sampling.infill import infill

            model = load()
            yield from redenoise(
                records, missing, model.tokenizer, partial(infill, model, temperature=TEMPERATURE),
                ratio, longest=model.config.max_length, batch=batch,
            )  # fmt: skip

    return answers


def _paraphrased(
    lab: Lab, dataset: Dataset, setting: Setting, adversary: Adversary
) -> Iterator[Attacked]:
    """Yield texts after each round of paraphrases; they are kept in files.

    Requests may cost money, so only the texts of the first key are paraphrased.
    """
    who = None if setting.key else adversary.paraphrasers.get("paraphrase")
    texts = lab.texts(dataset, setting)
    numbers = list(range(len(texts)))
    for rounds in range(1, ROUNDS + 1):
        if who is None:
            yield Attacked("paraphrase", rounds)
            continue
        folder = "paraphrase" if rounds == 1 else f"paraphrase-{rounds}"
        path = lab.folder / folder / dataset.name / f"{setting.slug}.jsonl"
        new = rewrite(texts, numbers, path, who.attack, who.answers_to)
        numbers = sorted(new)
        texts = [{"text": new.get(number, "")} for number in range(len(texts))]
        yield Attacked("paraphrase", rounds, new)


def _pairs_left(before: Ids, after: Ids) -> float:
    """Return the share of a text's distinct pairs of neighbours that another text has.

    >>> _pairs_left([1, 2, 3, 4], [9, 2, 3])
    0.3333333333333333
    """
    pairs = set(pairwise(before))
    return len(pairs & set(pairwise(after))) / max(1, len(pairs))


def _curves(rows: list[Row]) -> list[Curve]:
    """Return a panel for each attack: how often each scheme is still found, by strength."""
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    y = TPR.format(100 * RATES[0])
    for row in rows:
        if row["attack"] != "none" and y in row:
            scheme = find_scheme(row["scheme"])
            label = scheme.name if len(scheme.scores) == 1 else f"{scheme.name}, {row['score']}"
            line = lines.setdefault((f"{row['prompts']}, {row['attack']}", label), [])
            line.append((row["strength"], row[y]))
    return [Curve(panel, scheme, points) for (panel, scheme), points in lines.items()]
