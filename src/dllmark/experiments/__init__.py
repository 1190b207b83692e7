"""The paper's tables and figures, each as one run on any model: `dllmark reproduce`.

`prompts` are read, `batches` and `on_ray` write texts for them, `lab` keeps and measures these;
`specs` says what each table and figure consists of; `report` writes the results with the numbers of
the `paper` to compare, and `runs` remembers on what the texts were written. `evaluation` is one's
own mark on one's own texts: `dllmark report`.
"""
