"""Generations, indexes and completeness, as values."""
