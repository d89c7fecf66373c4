"""The version that every written file names. The only place that states it."""

from typing import Final

__version__: Final = "0.1.0"
