"""Real GPUs: reading, measuring and, only on request, controlling their clocks."""
