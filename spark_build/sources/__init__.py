"""Sources: a pin becomes a verified file or tree."""
