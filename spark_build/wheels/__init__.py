"""Wheels: read, audit, repair, write and compare them."""
