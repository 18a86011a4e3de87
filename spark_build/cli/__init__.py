"""The command line: thin commands, one error handler, rendering apart."""
