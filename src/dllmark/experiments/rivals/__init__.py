"""Other people's watermarks for the same samplers, and the run that compares them with ours.

`schemes.py` lists them, `marks.py` and `expected.py` mark a step of a sampler, `scores.py` and
`alignment.py` score ids, `coins.py` has the keyed randomness that both share, and `compare.py` is
the run. None of it is public API.
"""
