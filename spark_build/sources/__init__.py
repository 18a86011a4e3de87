"""Sources: turn a pin into a verified file or tree."""
