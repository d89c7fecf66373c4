"""Models fitted to clock sweeps: reading, diagnoses, fits, few measurements, what to measure next."""
