"""Wires the rooms: a trace on a GPU, policies compared at equal slack."""
