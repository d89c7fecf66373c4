"""Measuring: counter edges, a sampler, settling, and what the numbers allow to be said."""
