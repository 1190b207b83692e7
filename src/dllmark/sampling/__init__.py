"""The samplers of diffusion language models, with a place for the watermark in their loop."""
