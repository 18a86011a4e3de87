"""What a build runs in and with."""
