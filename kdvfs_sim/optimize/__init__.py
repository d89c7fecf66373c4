"""Policies, exact methods and baselines: from a Problem to a Solution."""
