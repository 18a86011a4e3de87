"""Recipes, trains and targets: TOML files become checked, evaluated values."""
