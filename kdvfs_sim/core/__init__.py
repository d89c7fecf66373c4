"""The nouns, and the Protocols that the rooms meet in."""
