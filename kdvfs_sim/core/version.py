"""The version that every written file names."""

from typing import Final

VERSION: Final = "0.1.0"
