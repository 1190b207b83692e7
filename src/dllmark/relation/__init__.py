"""Which pairs of tokens are green, under which key, over the ids of which tokenizer."""
