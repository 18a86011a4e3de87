"""Wheels as files: read, judged, repaired, written."""
