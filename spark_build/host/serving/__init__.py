"""The static index over HTTP."""
