"""The store, its generations, garbage collection, checks, index and server."""
