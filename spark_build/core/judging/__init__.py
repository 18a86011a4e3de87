"""Statistics, gates and verdicts of measurements."""
