"""TOML to values, settled for one target and train; mistakes and advice with their line."""
