"""The samplers of diffusion language models, with a place for the watermark in their loop."""

from dllmark.sampling.settings import Dream, Llada, Parallel, Sampler
from dllmark.sampling.texts import Generation, Step, check_prompts, generate

__all__ = [
    "Dream", "Generation", "Llada", "Parallel", "Sampler", "Step", "check_prompts", "generate",
]  # fmt: skip
