"""Arms, rounds, battery and report: what a build is worth."""
