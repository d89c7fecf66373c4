"""Runs: observe, isolated, live, sweep; their plans, records and verdicts."""
