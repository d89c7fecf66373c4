"""Recordings: readers, kernel kinds, and the Trace that the other rooms are given."""
