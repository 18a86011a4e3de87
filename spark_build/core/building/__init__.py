"""How many jobs, and what a build's output means."""
