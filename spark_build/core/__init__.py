"""Pure functions: no files, no processes, no clock."""
