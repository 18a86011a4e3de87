"""Collect facts about the machine and judge them."""
