"""Recipes, trains and targets: from TOML files to checked, evaluated values."""
