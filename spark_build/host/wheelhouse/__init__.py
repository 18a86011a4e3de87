"""The store, the views with their generations, and what keeps both true."""
