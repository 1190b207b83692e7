"""The diffusion models: one transformer, the families it covers as data, and loading them."""
