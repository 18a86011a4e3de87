"""Measurements: rounds, statistics, verdicts."""
