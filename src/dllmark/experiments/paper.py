"""The paper's own numbers, to stand beside ours: TPR in per cent at 0.5, 1 and 5 % FPR, and PPL."""

from __future__ import annotations

Rates = tuple[float, float, float]

DELTA = 2.0
"""The δ of the paper's Tables 1 and 2: their numbers are compared with ours at this δ only."""

TABLE_1: dict[str, dict[tuple[str, str], Rates]] = {
    "LLaDA-1.5-8B": {
        ("C4", "kgw"): (30.4, 71.2, 88.0),
        ("C4", "predictive"): (36.4, 76.8, 91.0),
        ("C4", "bidirectional"): (53.4, 87.6, 95.4),
        ("C4", "predictive-bidirectional"): (80.2, 96.8, 98.2),
        ("ELI5", "kgw"): (45.8, 63.6, 88.4),
        ("ELI5", "predictive"): (60.2, 77.6, 94.2),
        ("ELI5", "bidirectional"): (79.2, 86.2, 97.2),
        ("ELI5", "predictive-bidirectional"): (95.8, 99.0, 99.8),
    },
    "LLaDA-Instruct-8B": {
        ("C4", "kgw"): (29.6, 49.6, 83.6),
        ("C4", "predictive"): (36.4, 54.2, 89.2),
        ("C4", "bidirectional"): (55.0, 74.2, 95.2),
        ("C4", "predictive-bidirectional"): (80.0, 92.0, 98.4),
        ("ELI5", "kgw"): (54.4, 65.0, 84.4),
        ("ELI5", "predictive"): (63.8, 76.0, 92.6),
        ("ELI5", "bidirectional"): (78.4, 88.0, 95.8),
        ("ELI5", "predictive-bidirectional"): (97.8, 99.2, 99.8),
    },
    "Dream-v0-Instruct-7B": {
        ("C4", "kgw"): (32.8, 54.4, 75.9),
        ("C4", "predictive"): (45.2, 70.3, 89.3),
        ("C4", "bidirectional"): (67.6, 82.0, 93.6),
        ("C4", "predictive-bidirectional"): (93.6, 97.2, 98.1),
        ("ELI5", "kgw"): (41.7, 59.5, 83.5),
        ("ELI5", "predictive"): (63.2, 79.3, 92.1),
        ("ELI5", "bidirectional"): (73.3, 85.6, 95.5),
        ("ELI5", "predictive-bidirectional"): (98.8, 99.5, 100.0),
    },
}
"""By the paper's model, prompts and strategy."""


def table_1_model(model: str) -> str:
    """Return the model of the paper's Table 1 that a model's own rates stand beside.

    >>> table_1_model("GSAI-ML/LLaDA-1.5"), table_1_model("embedded")
    ('LLaDA-1.5-8B', 'LLaDA-Instruct-8B')
    """
    if "dream" in model.lower():
        return "Dream-v0-Instruct-7B"
    return "LLaDA-1.5-8B" if "1.5" in model else "LLaDA-Instruct-8B"


TABLE_2: dict[tuple[str, float, str], Rates] = {
    ("delete", 0.1, "kgw"): (36.8, 51.2, 74.4),
    ("delete", 0.1, "predictive"): (40.0, 52.2, 81.0),
    ("delete", 0.1, "bidirectional"): (63.2, 76.8, 91.2),
    ("delete", 0.1, "predictive-bidirectional"): (93.8, 97.2, 99.4),
    ("delete", 0.2, "kgw"): (21.0, 35.4, 68.4),
    ("delete", 0.2, "predictive"): (25.2, 39.2, 68.0),
    ("delete", 0.2, "bidirectional"): (45.8, 62.2, 84.6),
    ("delete", 0.2, "predictive-bidirectional"): (78.8, 88.4, 98.2),
    ("insert", 0.1, "kgw"): (34.0, 46.0, 73.2),
    ("insert", 0.1, "predictive"): (37.0, 52.0, 76.2),
    ("insert", 0.1, "bidirectional"): (60.4, 73.8, 90.0),
    ("insert", 0.1, "predictive-bidirectional"): (91.8, 95.6, 98.8),
    ("insert", 0.2, "kgw"): (22.0, 34.4, 59.4),
    ("insert", 0.2, "predictive"): (25.6, 35.4, 64.0),
    ("insert", 0.2, "bidirectional"): (41.0, 54.8, 82.0),
    ("insert", 0.2, "predictive-bidirectional"): (79.4, 86.8, 96.6),
    ("swap", 0.1, "kgw"): (35.2, 49.0, 69.4),
    ("swap", 0.1, "predictive"): (40.6, 53.6, 76.6),
    ("swap", 0.1, "bidirectional"): (57.0, 69.2, 91.0),
    ("swap", 0.1, "predictive-bidirectional"): (91.0, 96.8, 99.4),
    ("swap", 0.2, "kgw"): (19.4, 30.8, 59.8),
    ("swap", 0.2, "predictive"): (24.0, 37.4, 64.4),
    ("swap", 0.2, "bidirectional"): (34.8, 47.8, 76.8),
    ("swap", 0.2, "predictive-bidirectional"): (75.4, 84.2, 95.8),
    ("substitute", 0.1, "kgw"): (31.8, 45.0, 71.4),
    ("substitute", 0.1, "predictive"): (37.8, 52.2, 77.4),
    ("substitute", 0.1, "bidirectional"): (57.2, 69.6, 88.4),
    ("substitute", 0.1, "predictive-bidirectional"): (91.2, 95.0, 99.4),
    ("substitute", 0.2, "kgw"): (15.2, 26.6, 51.8),
    ("substitute", 0.2, "predictive"): (20.6, 31.8, 62.0),
    ("substitute", 0.2, "bidirectional"): (31.2, 47.8, 78.0),
    ("substitute", 0.2, "predictive-bidirectional"): (73.0, 83.6, 95.0),
    ("paraphrase", 0.0, "kgw"): (9.8, 17.0, 44.2),
    ("paraphrase", 0.0, "predictive"): (12.8, 21.0, 46.8),
    ("paraphrase", 0.0, "bidirectional"): (19.8, 29.6, 62.0),
    ("paraphrase", 0.0, "predictive-bidirectional"): (41.0, 51.2, 80.2),
    ("dipper", 0.0, "kgw"): (20.2, 29.6, 54.4),
    ("dipper", 0.0, "predictive"): (23.2, 32.4, 60.0),
    ("dipper", 0.0, "bidirectional"): (34.6, 45.8, 70.2),
    ("dipper", 0.0, "predictive-bidirectional"): (61.6, 72.6, 89.2),
}
"""By attack, ratio and strategy; the paper does not name the model and the prompts."""

TABLE_3: dict[tuple[str, float, float], tuple[Rates, float]] = {
    ("C4", 0.25, 1.0): ((13.4, 31.4, 61.6), 2.89),
    ("C4", 0.25, 2.0): ((89.8, 96.6, 98.4), 4.04),
    ("C4", 0.25, 5.0): ((100.0, 100.0, 100.0), 10.90),
    ("C4", 0.25, 10.0): ((100.0, 100.0, 100.0), 10.56),
    ("C4", 0.5, 1.0): ((13.0, 27.6, 67.4), 2.94),
    ("C4", 0.5, 2.0): ((80.0, 92.0, 98.4), 3.98),
    ("C4", 0.5, 5.0): ((100.0, 100.0, 100.0), 7.56),
    ("C4", 0.5, 10.0): ((100.0, 100.0, 100.0), 6.86),
    ("C4", 0.75, 1.0): ((7.6, 12.2, 54.2), 2.92),
    ("C4", 0.75, 2.0): ((41.4, 60.6, 94.8), 3.41),
    ("C4", 0.75, 5.0): ((98.8, 99.6, 99.8), 4.64),
    ("C4", 0.75, 10.0): ((100.0, 100.0, 100.0), 5.08),
    ("ELI5", 0.25, 1.0): ((22.2, 37.2, 64.2), 4.38),
    ("ELI5", 0.25, 2.0): ((96.8, 98.2, 99.8), 6.40),
    ("ELI5", 0.25, 5.0): ((100.0, 100.0, 100.0), 20.31),
    ("ELI5", 0.25, 10.0): ((100.0, 100.0, 100.0), 18.37),
    ("ELI5", 0.5, 1.0): ((30.4, 41.8, 66.0), 4.47),
    ("ELI5", 0.5, 2.0): ((97.8, 99.2, 99.8), 6.34),
    ("ELI5", 0.5, 5.0): ((100.0, 100.0, 100.0), 15.15),
    ("ELI5", 0.5, 10.0): ((100.0, 100.0, 100.0), 13.30),
    ("ELI5", 0.75, 1.0): ((10.6, 27.8, 50.4), 4.29),
    ("ELI5", 0.75, 2.0): ((83.0, 93.2, 98.0), 5.05),
    ("ELI5", 0.75, 5.0): ((100.0, 100.0, 100.0), 8.46),
    ("ELI5", 0.75, 10.0): ((100.0, 100.0, 100.0), 10.27),
}
"""By prompts, γ and δ: LLaDA-8B-Instruct, predictive-bidirectional; Llama-3-8B-Instruct judges."""

METHODS = tuple(dict.fromkeys(strategy for _, _, strategy in TABLE_2))
"""The paper's strategies, in its order."""

BEST = METHODS[-1]
"""The strategy the paper proposes: its Table 3, its figures and its examples are all of it."""
