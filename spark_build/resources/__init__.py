"""One budget of jobs and memory for all builds of a command."""
