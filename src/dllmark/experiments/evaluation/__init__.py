"""What a mark does on one's own model and texts: `dllmark report`.

`inputs` are read, and `weights` tells which model wrote the texts; `measures` counts what is found
in them, `cost` and `attacks` what a mark costs and withstands; `words` concludes, and `page` shows
it all with the `plots`. `run` does it in order.
"""
