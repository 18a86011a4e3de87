"""The wider suite: what its runs say when two are compared."""
