"""The version that every written file names. The only place that states it."""

__version__ = "0.1.0"
