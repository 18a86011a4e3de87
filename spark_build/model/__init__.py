"""Frozen values that the rest of the program passes around. No IO here."""
