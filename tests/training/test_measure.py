"""What training/measure.py says of texts."""

import numpy as np

import measure
from dllmark.experiments.settings import Dataset

ASKED = Dataset("ELI5", ["Why?", "How?", "When?"], ["a", "b", "c"], chat=True)


def texts(*written):
    return [measure.Text("Why?", text, ids) for text, ids in written]


def test_loops_short_answers_and_other_turns_are_counted():
    found = measure.report(
        texts(
            ("It is so.", list(range(80))),
            ("so so", [1, 2, 3, 4] * 30),
            ("It is so.\nUser: and now?", list(range(70))),
            ("A user: is one.", list(range(10))),
        ),
        {},
        answers=True,
    )
    assert found["degenerate"] == found["under 60 tokens"] == found["another user's turn"] == 0.25


def test_an_answer_is_on_topic_where_its_own_question_makes_it_likelier(monkeypatch):
    def perplexities(judge, pairs):
        return [1.0 if prompt == text else 2.0 for prompt, text in pairs]

    monkeypatch.setattr(measure, "perplexities", perplexities)
    answers = [measure.Text(name, name, list(range(30))) for name in ("a", "b", "c")]
    answers.append(measure.Text("d", "another", list(range(30))))
    found = measure.report(answers, {"judge": None}, answers=True)
    assert found["on topic by judge"] == 0.75
    assert found["perplexity by judge"] == 1.0


def test_keys_share_the_prompts_and_find_their_marks(endless, small_key):
    keys = [small_key, small_key.derive("another")]
    kind = measure.Kind(ASKED, 32, 0.8, 2)
    marked = measure.write(endless, kind, keys, batch=2)
    assert [text.prompt for text in marked] == ASKED.prompts
    assert np.mean([text.z for text in marked]) > 2
    assert measure.write(endless, kind, [None], batch=3)[0].z is None
