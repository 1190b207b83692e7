"""Mark a text while it is written: the bias on the logits, in any order of writing."""
