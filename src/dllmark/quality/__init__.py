"""How good texts are: perplexity under a causal model, repetition, and length."""
