"""What to build, and the keys that say so."""
