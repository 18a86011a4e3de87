"""Text from elsewhere, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line a terminal can show: names in wheels and tables may hold anything, control codes included."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
