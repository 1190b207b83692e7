"""What an adversary does to a marked text.

`tokens` edits tokens at random as the paper does, `characters` changes what a reader hardly sees,
and `endpoint` and `dipper` have another model paraphrase. `command` is `dllmark attack`.
"""
