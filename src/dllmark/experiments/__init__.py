"""The paper's tables and figures, each as one run on any model: `dllmark reproduce`.

`prompts` are read, `writing` and `on_ray` write texts for them, `lab` keeps and measures these;
`specs` says what each table and figure consists of; `report` writes what was found, with the
numbers of the `paper` beside it, and `runs` remembers on what the texts were written.
"""
