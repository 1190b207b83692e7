"""How long one key should mark before another takes over."""

TEXTS_PER_KEY = 10
"""Texts of 200 tokens that a key may mark before a forger can use them.

From 10 texts of one key, 0.1 % of what a forger writes on a subject of its own passes at a rate of
1e-6 (0.5 % for the worst of ten keys), from 15 texts 0.6 %, from 20 texts 1.7 %, from 100 about
half of it: docs/results/stealing.md, measured by `benchmarks/stealing.py limit`. On the subject of
the texts themselves even 5 are too many (3 %).
"""
