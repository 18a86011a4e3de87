"""What is in a wheel, and what may be said of it."""
