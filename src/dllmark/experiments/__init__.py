"""The paper's tables and figures, each as one run on any model: `dllmark reproduce`.

`lab` writes, keeps and measures texts; `specs` says what each table and figure consists of;
`report` writes what was found, with the numbers of the `paper` beside it.
"""
