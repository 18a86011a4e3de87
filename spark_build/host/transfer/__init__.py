"""Carry wheels to another machine, proven on both ends: docs/offline.md says what is in an export."""
