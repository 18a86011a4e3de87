"""Write and update recipes."""
