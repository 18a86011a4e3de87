"""Judges what was found out about a machine by what a plan needs: facts in, findings out."""
