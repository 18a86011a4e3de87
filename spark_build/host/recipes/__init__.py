"""Recipe files: loaded, written, pinned."""
