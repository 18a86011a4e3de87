"""The only layer that touches the machine."""
