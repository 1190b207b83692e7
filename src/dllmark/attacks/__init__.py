"""What an adversary does to a marked text.

`tokens` edits tokens at random as the paper does, `characters` changes what a reader hardly sees,
`synonyms` replaces words. `redenoise` has a diffusion model fill in masks, `endpoint` and `dipper`
have a model paraphrase. `steal` estimates which pairs are green, `forge` and `scrub` use that.
"""
