"""Pages of the wider suite."""
