"""Bundles for other machines: export and import."""
